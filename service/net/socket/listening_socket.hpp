#pragma once
// Listening sockets by plain system calls: close-on-exec from birth, the mode in place before a peer can connect, a
// stale socket file replaced and a live daemon's left alone. Used at start and stop only.

#include "base/unique_fd.hpp"
#include "net/types.hpp"

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>

namespace gradsync::net {

/// A bound socket file; `remove_if_ours` unlinks it unless another daemon has replaced it meanwhile.
class SocketFile {
 public:
  SocketFile() = default;

  SocketFile(std::string path, dev_t device, ino_t inode) : path_(std::move(path)), device_(device), inode_(inode) {}

  void remove_if_ours();

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

struct UnixListener {
  UniqueFd fd;
  SocketFile file;
};

template <typename T>
using Started = std::variant<T, StartFailure>;

/// Binds one socket file, after removing one that nobody listens on. The caller has the lock of `hold_socket`, without
/// which two daemons that start at once would both replace a stale file.
[[nodiscard]] Started<UnixListener> listen_unix(const std::string& path, unsigned mode);

/// The lock that a daemon holds for its whole life, on a file beside its socket that is never removed: `….sock.lock`,
/// mode 0600, so that no other user can keep a daemon from starting. Creates the socket's folder (0755) when only it is
/// missing. A successor waits for it until `patience` is over, because a daemon that drains still touches its ranks'
/// memory; beside one that answers, it is refused at once. Blocks meanwhile; `interrupted` ends the waiting.
[[nodiscard]] Started<UniqueFd> hold_socket(
    const std::string& socket_path, Milliseconds patience, const std::function<bool()>& interrupted
);

/// "127.0.0.1:9477", "[::1]:0", "localhost:9477".
struct TcpListener {
  UniqueFd fd;
  std::string endpoint;  ///< the address and port that were bound
};

/// `default_port`: where the address has none; nullopt: it has to have one.
[[nodiscard]] Started<TcpListener> listen_tcp(
    const std::string& address, std::optional<std::uint16_t> default_port = std::nullopt
);

/// …/gradsync.sock → …/gradsync.fd.sock
[[nodiscard]] std::string fd_socket_path(const std::string& socket_path);

}  // namespace gradsync::net
