#pragma once
// One WebSocket from the accepted upgrade to its close: text messages in, a bounded queue of texts out. Internal to
// net.

#include "net/server_context.hpp"

#include <string>

namespace gradsync::net {

/// What the HTTP side hands over with an upgrade.
struct Upgrade {
  ConnectionId id = 0;
  Socket socket;
  std::string head;  ///< of the request, as it was read
  PeerIdentity peer;
  UniqueFd process;
};

/// Replaces the session of the same id. The subprotocol has been checked.
[[nodiscard]] Task<void> serve_websocket(ContextPtr context, Upgrade upgrade);

}  // namespace gradsync::net
