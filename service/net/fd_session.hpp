#pragma once
// One connection of the fd socket: a token in, one line of JSON and a descriptor out. Internal to net.

#include "net/server_context.hpp"

namespace gradsync::net {

[[nodiscard]] Serving serve_fd_request(const ContextPtr& context, Incoming incoming);

}  // namespace gradsync::net
