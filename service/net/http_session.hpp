#pragma once
// One HTTP connection: pages, POST /rpc, and the upgrade to WebSocket. What may be asked for depends on the entrance.
// Internal to net.

#include "net/server_context.hpp"

namespace gradsync::net {

[[nodiscard]] Serving serve_http(const ContextPtr& context, Incoming incoming);

}  // namespace gradsync::net
