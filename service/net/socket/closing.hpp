#pragma once
// Ends a connection so that its peer sees why: the last text is written, the sending side is shut down, and what the
// peer still sends is read and dropped, because closing a socket with unread bytes resets the connection.
//
// Thread: io only. Internal to net.

#include "base/clock.hpp"
#include "net/socket/peer_socket.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

namespace gradsync::net {

/// Which end of a WebSocket this is: frames of the client are masked, and those of the server are not.
enum class WebSocketEnd { Server, Client };

/// A close frame without Beast, which must not be reading any more. False: it could not be written.
[[nodiscard]] Task<bool> say_close(PeerSocket& socket, WebSocketEnd end, std::uint16_t code, std::string_view reason);

/// Reads and drops until the peer closes, the socket is closed, that much was read, or a read ends and `wanted` is
/// false. Returns what it cost (net/limits/fair_share.hpp).
[[nodiscard]] Task<Duration> read_off(
    PeerSocket& socket, std::size_t most_bytes, std::function<bool()> wanted = [] { return true; }
);

}  // namespace gradsync::net
