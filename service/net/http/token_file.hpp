#pragma once
// Files with a bearer token. Used at start only. Internal to net.

#include "net/socket/listening_socket.hpp"

#include <string>

namespace gradsync::net {

/// The token, without the white space at its end. It has at least 16 bytes, and nobody but the daemon's user and root
/// may change the file; its group may read it, as in a mounted secret. `setting` names the file in messages, like
/// "[server] tcp_token_file", and `instead` says what to set where no token is wanted.
[[nodiscard]] Started<std::string> read_token_file(
    const std::string& path, const std::string& setting, const std::string& instead
);

}  // namespace gradsync::net
