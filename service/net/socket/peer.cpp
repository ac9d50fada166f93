#include "net/socket/peer.hpp"

#include <fmt/format.h>

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // newer than the headers of Debian 12
#endif

namespace gradsync::net {

std::optional<PeerIdentity> local_peer(int socket) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return std::nullopt;
  }
  PeerIdentity peer;
  peer.local = true;
  peer.uid = credentials.uid;
  peer.gid = credentials.gid;
  peer.pid = credentials.pid;
  return peer;
}

UniqueFd open_peer_process(int socket, std::int64_t pid) {
  int fd = -1;
  socklen_t size = sizeof fd;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &size) == 0) {
    return UniqueFd{fd};
  }
  if (pid == 0) {  // another pid namespace, whose processes only the kernel can name
    return UniqueFd{};
  }
  // The header of glibc 2.36 declares pidfd_open with C++ linkage.
  return UniqueFd{static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0))};
}

bool uid_allowed(std::uint32_t uid, std::uint32_t own_uid, const ServerOptions& options) {
  return options.allow_any_uid || uid == own_uid || uid == 0 ||
         std::find(options.allowed_uids.begin(), options.allowed_uids.end(), uid) != options.allowed_uids.end();
}

Error uid_refused(std::uint32_t uid, std::uint32_t own_uid) {
  return make_error(
      ErrorCode::Unauthorized,
      fmt::format("uid {} may not use this daemon, which runs as uid {}", uid, own_uid),
      fmt::format("add {} to allowed_uids in section [server] of its configuration, or start your own daemon", uid)
  );
}

}  // namespace gradsync::net
