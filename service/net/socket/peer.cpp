#include "net/socket/peer.hpp"

#include <fmt/format.h>

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

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

std::string address_text(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address.ss_family == AF_INET) {
    const auto& ipv4 = reinterpret_cast<const sockaddr_in&>(address);
    return ::inet_ntop(AF_INET, &ipv4.sin_addr, text, sizeof text) == nullptr ? "" : text;
  }
  if (address.ss_family != AF_INET6) {
    return "";
  }
  const auto& ipv6 = reinterpret_cast<const sockaddr_in6&>(address);
  if (IN6_IS_ADDR_V4MAPPED(&ipv6.sin6_addr)) {
    constexpr std::size_t kPrefix = 12;
    return ::inet_ntop(AF_INET, &ipv6.sin6_addr.s6_addr[kPrefix], text, sizeof text) == nullptr ? "" : text;
  }
  return ::inet_ntop(AF_INET6, &ipv6.sin6_addr, text, sizeof text) == nullptr ? "" : text;
}

SocketEnds socket_ends(int socket) {
  SocketEnds ends;
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0) {
    ends.own = address_text(address);
  }
  address = {};
  size = sizeof address;
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0) {
    ends.other = address_text(address);
  }
  return ends;
}

void set_tcp_options(int socket, Milliseconds unacknowledged) {
  const int on = 1;
  const auto unacknowledged_ms = static_cast<unsigned>(unacknowledged.count());
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &unacknowledged_ms, sizeof unacknowledged_ms);
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
