#pragma once
// The client of the command line: one POST /rpc over the unix socket, blocking, with a deadline.

#include "app/config/configuration.hpp"
#include "base/error.hpp"

#include <optional>
#include <string>

namespace gradsync::app {

struct HttpReplyText {
  int status = 0;
  std::string body;
};

/// The socket to talk to: `address` (path or unix:path), else $GRADSYNC_ADDRESS, else the first usual place that
/// exists.
[[nodiscard]] std::string find_daemon(const std::string& address, const Environment& environment, bool root);

/// Errors name the path and say what to do.
[[nodiscard]] Result<HttpReplyText> post_rpc(const std::string& socket_path, const std::string& body);

}  // namespace gradsync::app
