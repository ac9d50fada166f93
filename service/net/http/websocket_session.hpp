#pragma once
// One WebSocket from the accepted upgrade to its close: text messages in, a bounded queue of texts out. Internal to
// net.

#include "net/server_context.hpp"
#include "net/socket/peer_socket.hpp"

#include <any>

namespace gradsync::net {

/// The values that the HTTP side hands over with an upgrade.
struct Upgrade {
  ConnectionId id = 0;
  PeerSocket socket;
  std::any request;  ///< an http::request<http::string_body>; Beast's headers stay in .cpp files
  PeerIdentity peer;
  UniqueFd process;
};

/// Replaces the session of the same id. The subprotocol has been checked.
[[nodiscard]] Task<void> serve_websocket(ContextPtr context, Upgrade upgrade);

}  // namespace gradsync::net
