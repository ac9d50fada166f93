#pragma once
// Links that other daemons open to this one: what follows the request that the listener has let through.
//
// Thread: io only. Internal to net.

#include "net/http/websocket_session.hpp"
#include "net/server_context.hpp"

namespace gradsync::net {

/// Replaces the session of the same id. Token, path and subprotocol have been checked. Until it joins, the link keeps
/// the place that its connection took.
[[nodiscard]] Task<void> serve_peer_link(ContextPtr context, Upgrade upgrade);

}  // namespace gradsync::net
