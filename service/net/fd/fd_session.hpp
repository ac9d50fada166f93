#pragma once
// One connection of the fd socket: a token in, with or without a descriptor; one line of JSON out, with or without a
// descriptor. Internal to net.

#include "net/server_context.hpp"

namespace gradsync::net {

[[nodiscard]] Serving serve_fd_request(const ContextPtr& context, Incoming incoming);

}  // namespace gradsync::net
