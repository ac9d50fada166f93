#pragma once
// The client of the command line: one POST /rpc over the unix socket, blocking, with a deadline.

#include "app/config/socket_places.hpp"
#include "base/error.hpp"

#include <optional>
#include <string>

namespace gradsync::app {

struct HttpReplyText {
  int status = 0;
  std::string body;
};

/// The socket to talk to: `address` (path or unix:path), else $GRADSYNC_ADDRESS, else the first of `socket_places`
/// where a daemon listens. Errors name all places.
[[nodiscard]] Result<std::string> find_daemon(
    const std::string& address, const Environment& environment, const Caller& caller
);

/// Errors name the path and say what to do; see `refuse_place` for sockets in /tmp.
[[nodiscard]] Result<HttpReplyText> post_rpc(const std::string& socket_path, const std::string& body);

}  // namespace gradsync::app
