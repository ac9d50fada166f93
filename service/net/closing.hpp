#pragma once
// How a connection ends so that its peer sees why: what is said last goes out, the sending side is shut down, and what
// the peer still sends is read off, since a socket that is closed with bytes unread resets the connection.
//
// Thread: io only. Internal to net.

#include "base/clock.hpp"
#include "net/asio_types.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

namespace gradsync::net {

/// A close frame without Beast, which must not be reading any more. False: it could not be written.
[[nodiscard]] Task<bool> say_close(Socket& socket, std::uint16_t code, std::string_view reason);

/// Until the peer closes, the socket is closed, that much was read, or a read ends and it is not `wanted` any more.
/// Returns what it cost (net/fair_share.hpp).
[[nodiscard]] Task<Duration> read_off(
    Socket& socket, std::size_t most_bytes, std::function<bool()> wanted = [] { return true; }
);

}  // namespace gradsync::net
