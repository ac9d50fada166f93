#pragma once
// What is answered to requests of HTTP that are refused: plain texts that name what is wrong and what is allowed. Pure.
// Internal to net.

#include "base/clock.hpp"

#include <boost/system/error_code.hpp>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace gradsync::net {

/// A header of requests is not read beyond this.
inline constexpr std::size_t kHeaderBytes = 16 * 1024;

struct Refusal {
  int status = 0;
  std::string text;
  std::string field = {};  ///< a header of its own, like "Allow"; empty: none
  std::string value = {};
};

/// A WebSocket that an entrance has.
struct UpgradePlace {
  std::string_view path;
  std::string_view protocol;
  bool at_root = false;  ///< at "/", too
};

/// The request could not be read. `body_bytes`: the limit; 0: none is taken. nullopt: the peer just left.
[[nodiscard]] std::optional<Refusal> refuse_unreadable(boost::system::error_code error, std::size_t body_bytes);

/// `offered`: a comma-separated `Sec-WebSocket-Protocol`. `bytes_behind`: what came along with the request, which the
/// WebSocket could not read; a silent loss would leave the peer waiting.
[[nodiscard]] std::optional<Refusal> refuse_upgrade(
    const UpgradePlace& place, std::string_view target, std::string_view offered, std::size_t bytes_behind
);

/// There is nothing but that WebSocket, and the request is no upgrade.
[[nodiscard]] Refusal refuse_without_upgrade(const UpgradePlace& place, std::string_view target);

/// `setting`: where the right token is, like "[server] tcp_token_file".
[[nodiscard]] Refusal wrong_token(std::string_view setting);

/// Other requests of its process went first for so long.
[[nodiscard]] Refusal waited_too_long(Milliseconds waited);

[[nodiscard]] Refusal method_not_allowed(std::string allowed);

}  // namespace gradsync::net
