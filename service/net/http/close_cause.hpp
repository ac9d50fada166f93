#pragma once
// Why the daemon closes a WebSocket: a code and a reason for the peer, and a line for the log. Pure. Internal to net.

#include "base/clock.hpp"
#include "net/limits/held_bytes.hpp"
#include "net/limits/repeated_line.hpp"

#include <spdlog/common.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace gradsync::net {

struct CloseCause {
  std::uint16_t code = 0;  ///< RFC 6455, section 7.4
  std::string told;
  std::string logged = {};  ///< empty: no line
  spdlog::level::level_enum level = spdlog::level::info;
  RepeatedLine::Kind kind = RepeatedLine::Kind::HalfSent;  ///< of the line
};

[[nodiscard]] CloseCause shutting_down();
[[nodiscard]] CloseCause binary_message();
[[nodiscard]] CloseCause message_too_large(std::size_t most_bytes);
[[nodiscard]] CloseCause cut_within_character();

/// The token that let the peer in may be another one now.
[[nodiscard]] CloseCause token_replaced();

/// The handler of messages asks for the close.
[[nodiscard]] CloseCause close_asked(std::string_view reason);

/// Half-sent messages hold more than they may.
[[nodiscard]] CloseCause too_much_half_sent(const HeldBytes::Excess& excess);

/// Other connections of its process went first for so long.
[[nodiscard]] CloseCause share_used_up(Milliseconds waited);

[[nodiscard]] CloseCause message_not_ended(Milliseconds waited);

[[nodiscard]] CloseCause not_initialized(Milliseconds waited);

}  // namespace gradsync::net
