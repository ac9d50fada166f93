#pragma once
// One HTTP connection: pages, POST /rpc, and the upgrade to WebSocket. The listener decides which requests are allowed.
// Internal to net.

#include "net/server_context.hpp"

namespace gradsync::net {

[[nodiscard]] Serving serve_http(const ContextPtr& context, Incoming incoming);

}  // namespace gradsync::net
