#pragma once
// The process at the other end of a unix socket, as the kernel reports it.

#include "base/unique_fd.hpp"
#include "net/types.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace gradsync::net {

/// SO_PEERCRED of a connected unix socket. pid 0: the process lives in a pid namespace this one cannot see.
[[nodiscard]] std::optional<PeerIdentity> local_peer(int socket);

/// A pidfd of the process that connected: SO_PEERPIDFD (Linux 6.5), which cannot name another process, else
/// pidfd_open. Invalid when pid is 0 or the process is gone.
[[nodiscard]] UniqueFd open_peer_process(int socket, std::int64_t pid);

/// The daemon's own uid and root are always allowed.
[[nodiscard]] bool uid_allowed(std::uint32_t uid, std::uint32_t own_uid, const ServerOptions& options);

/// The message to a refused peer: its uid and what to change.
[[nodiscard]] Error uid_refused(std::uint32_t uid, std::uint32_t own_uid);

}  // namespace gradsync::net
