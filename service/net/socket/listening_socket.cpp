#include "net/socket/listening_socket.hpp"

#include "base/text/host_port.hpp"

#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

namespace gradsync::net {

namespace {

using Kind = StartFailure::Kind;

constexpr Milliseconds kPause{10};

std::string reason(int error) { return std::generic_category().message(error); }

StartFailure cannot(const std::string& what, const std::string& path, int error, std::string hint = {}) {
  const bool configuration = error == EACCES || error == EPERM || error == ENOENT || error == ENOTDIR || error == EROFS;
  return {
      configuration ? Kind::Configuration : Kind::System,
      fmt::format("cannot {} '{}': {}", what, path, reason(error)),
      std::move(hint)};
}

Started<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return StartFailure{
        Kind::Configuration,
        fmt::format(
            "the socket path '{}' has {} bytes; the system allows {}", path, path.size(), sizeof address.sun_path - 1
        ),
        "set [server] socket to a shorter path"};
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

/// The folder of a socket, made (0755) when only it is missing.
Started<std::string> make_directory(const std::string& socket_path) {
  std::string directory = std::filesystem::path(socket_path).parent_path().string();
  if (directory.empty()) {
    directory = std::string(".");
  }
  if (::mkdir(directory.c_str(), 0755) != 0 && errno != EEXIST) {
    return cannot(
        "create the socket directory",
        directory,
        errno,
        "create it, or set [server] socket to a path this user may write"
    );
  }
  return directory;
}

std::optional<StartFailure> refuse_answering(const std::string& path, const sockaddr_un& address) {
  const UniqueFd probe{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  if (!probe.valid()) {
    return cannot("open a socket for", path, errno);
  }
  const int connected = ::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  if (connected == 0 || errno == EAGAIN || errno == EINPROGRESS) {  // EAGAIN: a listener with a full backlog
    return StartFailure{
        Kind::InUse,
        fmt::format("a daemon is already answering at '{}'", path),
        "stop it first, or give this one another [server] socket"};
  }
  if (errno != ECONNREFUSED && errno != ENOENT) {
    return cannot("try the socket", path, errno, "remove the file if no daemon uses it");
  }
  return std::nullopt;
}

/// The kind of file at the path: none, a socket without a listener (stale), or one that must stay.
std::optional<StartFailure> clear_stale(const std::string& path, const sockaddr_un& address) {
  struct stat found {};

  if (::lstat(path.c_str(), &found) != 0) {
    return errno == ENOENT ? std::nullopt : std::optional(cannot("look at", path, errno));
  }
  if (!S_ISSOCK(found.st_mode)) {
    return StartFailure{
        Kind::Configuration,
        fmt::format("'{}' exists and is not a socket", path),
        "remove it or set another [server] socket"};
  }
  if (auto failure = refuse_answering(path, address)) {
    return failure;
  }
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
    return cannot("remove the stale socket", path, errno);
  }
  return std::nullopt;
}

/// A lock file that somebody else made, or that others may open, is one that others can lock.
std::optional<StartFailure> keep_to_ourselves(int fd, const std::string& path) {
  struct stat found {};

  if (::fstat(fd, &found) != 0) {
    return cannot("look at the lock file", path, errno);
  }
  if (found.st_uid != ::geteuid()) {
    return StartFailure{
        Kind::Configuration,
        fmt::format("the lock file '{}' belongs to uid {}, this daemon is uid {}", path, found.st_uid, ::geteuid()),
        "remove it, or set another [server] socket"};
  }
  if ((found.st_mode & (S_IRWXG | S_IRWXO)) != 0 && ::fchmod(fd, S_IRUSR | S_IWUSR) != 0) {
    return cannot("narrow the mode of the lock file", path, errno);
  }
  return std::nullopt;
}

}  // namespace

void SocketFile::remove_if_ours() {
  struct stat found {};

  if (!path_.empty() && ::lstat(path_.c_str(), &found) == 0 && found.st_dev == device_ && found.st_ino == inode_) {
    ::unlink(path_.c_str());
  }
  path_.clear();
}

Started<UniqueFd> hold_socket(
    const std::string& socket_path, Milliseconds patience, const std::function<bool()>& interrupted
) {
  const auto address = address_of(socket_path);
  if (const auto* failure = std::get_if<StartFailure>(&address)) {
    return *failure;
  }
  const auto made = make_directory(socket_path);
  if (const auto* failure = std::get_if<StartFailure>(&made)) {
    return *failure;
  }
  if (auto failure = refuse_answering(socket_path, std::get<sockaddr_un>(address))) {
    return *failure;
  }
  const std::string path = socket_path + ".lock";
  // Mode 0600: another user who may read the folder must not be able to hold the lock.
  UniqueFd fd{::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)};
  if (!fd.valid()) {
    return cannot("open the lock file", path, errno, "check the owner and mode of its directory");
  }
  if (auto failure = keep_to_ourselves(fd.get(), path)) {
    return *failure;
  }
  const auto give_up = std::chrono::steady_clock::now() + patience;
  bool told = false;
  while (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) {
      return cannot("lock", path, errno);
    }
    // Another that waited too may have been the first.
    if (auto failure = refuse_answering(socket_path, std::get<sockaddr_un>(address))) {
      return *failure;
    }
    if (interrupted() || std::chrono::steady_clock::now() >= give_up) {
      return StartFailure{
          Kind::InUse,
          fmt::format("the daemon before this one has not ended: it holds '{}'", path),
          "`fuser -v` on the file names it: wait for it or end it, or set another [server] socket"};
    }
    if (!told) {
      spdlog::info("waiting for the daemon before this one to end lock={} patience_ms={}", path, patience.count());
      told = true;
    }
    std::this_thread::sleep_for(kPause);
  }
  return fd;
}

Started<UnixListener> listen_unix(const std::string& path, unsigned mode) {
  const auto made = address_of(path);
  if (const auto* failure = std::get_if<StartFailure>(&made)) {
    return *failure;
  }
  const auto& address = std::get<sockaddr_un>(made);
  if (auto failure = clear_stale(path, address)) {
    return *failure;
  }
  UnixListener listener;
  listener.fd.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.fd.valid()) {
    return cannot("open a socket for", path, errno);
  }
  // No peer can connect between bind and listen, so the mode is in place before the first connection.
  if (::bind(listener.fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return cannot("bind", path, errno, "check the owner and mode of its directory");
  }

  struct stat bound {};

  if (::lstat(path.c_str(), &bound) != 0) {
    return cannot("look at", path, errno);
  }
  listener.file = SocketFile{path, bound.st_dev, bound.st_ino};
  if (::chmod(path.c_str(), static_cast<mode_t>(mode)) != 0 || ::listen(listener.fd.get(), SOMAXCONN) != 0) {
    const int error = errno;
    listener.file.remove_if_ours();
    return cannot("listen on", path, error);
  }
  return listener;
}

namespace {

/// nullopt: the text is not a numeric address and a port.
std::optional<boost::asio::ip::tcp::endpoint> parse_endpoint(
    const std::string& address, std::optional<std::uint16_t> default_port
) {
  const auto parsed = parse_host_port(address);
  const std::optional<std::uint16_t> port = parsed && !parsed->port ? default_port
                                            : parsed                ? parsed->port
                                                                    : std::nullopt;
  if (!port) {
    return std::nullopt;
  }
  boost::system::error_code error;
  const auto ip = boost::asio::ip::make_address(parsed->host == "localhost" ? "127.0.0.1" : parsed->host, error);
  return error ? std::nullopt : std::optional(boost::asio::ip::tcp::endpoint{ip, *port});
}

}  // namespace

Started<TcpListener> listen_tcp(const std::string& address, std::optional<std::uint16_t> default_port) {
  const auto parsed = parse_endpoint(address, default_port);
  if (!parsed) {
    return StartFailure{
        Kind::Configuration,
        fmt::format("'{}' is not an address like 127.0.0.1:9477 or [::1]:9477", address),
        "names are not resolved here, except localhost"};
  }
  const boost::asio::ip::tcp::endpoint& wanted = *parsed;
  TcpListener listener;
  listener.fd.reset(::socket(wanted.protocol().family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  if (!listener.fd.valid() || ::setsockopt(listener.fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      ::bind(listener.fd.get(), wanted.data(), static_cast<socklen_t>(wanted.size())) != 0 ||
      ::listen(listener.fd.get(), SOMAXCONN) != 0) {
    const int error = errno;
    return StartFailure{
        error == EADDRINUSE ? Kind::InUse : Kind::Configuration,
        fmt::format("cannot listen on {}: {}", address, reason(error)),
        "port 0 takes any free port"};
  }
  boost::asio::ip::tcp::endpoint bound = wanted;
  socklen_t size = static_cast<socklen_t>(bound.capacity());
  if (::getsockname(listener.fd.get(), bound.data(), &size) != 0) {
    return cannot("read the port of", address, errno);
  }
  listener.endpoint = join_host_port(bound.address().to_string(), bound.port());
  return listener;
}

std::string fd_socket_path(const std::string& socket_path) {
  constexpr std::string_view kSuffix = ".sock";
  const std::size_t stem = socket_path.size() - std::min(socket_path.size(), kSuffix.size());
  if (std::string_view{socket_path}.substr(stem) == kSuffix) {
    return socket_path.substr(0, stem) + ".fd.sock";
  }
  return socket_path + ".fd.sock";
}

}  // namespace gradsync::net
