#pragma once
// Why a link ended, or could not be opened, in words. Pure. Internal to net.

#include "base/clock.hpp"

#include <boost/system/error_code.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace gradsync::net {

/// The other end answered the handshake with another status than 101.
[[nodiscard]] std::string declined(unsigned status);

[[nodiscard]] std::string no_answer_within(Milliseconds wait);

/// An error of the socket, or of the WebSocket protocol.
[[nodiscard]] std::string broken_by(boost::system::error_code error);

/// Reading ended with this error. `code`: that of the close frame, where one came; the other end's own words are not
/// repeated, because they may be anything. `most_bytes`: the limit of a message.
[[nodiscard]] std::string ended_by(boost::system::error_code error, std::uint16_t code, std::size_t most_bytes);

[[nodiscard]] std::string silent_for(Milliseconds wait);
[[nodiscard]] std::string not_joined_within(Milliseconds wait);
[[nodiscard]] std::string too_large_to_send(std::size_t bytes, std::size_t most);
[[nodiscard]] std::string too_much_unread(std::size_t bytes, std::size_t most);
[[nodiscard]] std::string too_much_joining(std::size_t most);

}  // namespace gradsync::net
