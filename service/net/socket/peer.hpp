#pragma once
// Who is at the other end of a socket, as the kernel reports it.

#include "base/unique_fd.hpp"
#include "net/types.hpp"

#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>

namespace gradsync::net {

/// SO_PEERCRED of a connected unix socket. pid 0: the process lives in a pid namespace this one cannot see.
[[nodiscard]] std::optional<PeerIdentity> local_peer(int socket);

/// A pidfd of the process that connected: SO_PEERPIDFD (Linux 6.5), which cannot name another process, else
/// pidfd_open. Invalid when pid is 0 or the process is gone.
[[nodiscard]] UniqueFd open_peer_process(int socket, std::int64_t pid);

/// A numeric address without its port; an IPv4 address that a socket of IPv6 took is one of IPv4. Empty: it is neither.
[[nodiscard]] std::string address_text(const sockaddr_storage& address);

struct SocketEnds {
  std::string own;
  std::string other;
};

/// The addresses of a connected socket, as `address_text` writes them.
[[nodiscard]] SocketEnds socket_ends(int socket);

/// What is written goes out at once, and the connection breaks where it is not acknowledged for so long.
void set_tcp_options(int socket, Milliseconds unacknowledged);

/// The daemon's own uid and root are always allowed.
[[nodiscard]] bool uid_allowed(std::uint32_t uid, std::uint32_t own_uid, const ServerOptions& options);

/// The message to a refused peer: its uid and what to change.
[[nodiscard]] Error uid_refused(std::uint32_t uid, std::uint32_t own_uid);

}  // namespace gradsync::net
