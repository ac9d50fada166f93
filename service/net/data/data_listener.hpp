#pragma once
// Data connections that other daemons open to this one: what follows the request that the listener has let through.
//
// Thread: io only. Internal to net.

#include "net/data_types.hpp"
#include "net/http/websocket_session.hpp"
#include "net/server_context.hpp"

#include <string>

namespace gradsync::net {

/// Replaces the session of the same id. Token, path and headers have been checked. It answers 101, and the socket is
/// the owner's of the links; the connection takes no place in the server any more.
[[nodiscard]] Task<void> serve_data_link(
    ContextPtr context, Upgrade upgrade, DataLinkHello hello, std::string other_address
);

}  // namespace gradsync::net
