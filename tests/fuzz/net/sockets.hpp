#pragma once
// A real server and its unix sockets in the process of a fuzzer. One thread: the fuzzer writes to a socket, then runs
// the server's io context until it has nothing left to do, and reads. Nothing waits for a clock; only where the server
// has to end something a deadline keeps a defect from hanging.

#include "base/unique_fd.hpp"
#include "fuzz/fuzz.hpp"

#include <boost/asio/io_context.hpp>

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <dirent.h>
#include <filesystem>
#include <string>
#include <string_view>
#include <thread>

namespace gradsync::fuzz {

/// A folder for sockets, away again when the fuzzer ends.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "gradsync-fuzz-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }

  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  [[nodiscard]] std::string operator/(const char* name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

/// Descriptors of this process.
inline std::size_t open_descriptors() {
  DIR* folder = ::opendir("/proc/self/fd");
  REQUIRE(folder != nullptr);
  std::size_t found = 0;
  while (::readdir(folder) != nullptr) {
    ++found;
  }
  ::closedir(folder);
  return found;
}

/// The client's end of a connection.
class ClientSocket {
 public:
  explicit ClientSocket(const std::string& path)
      : fd_(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    REQUIRE(fd_.valid() && path.size() < sizeof address.sun_path);
    std::memcpy(address.sun_path, path.data(), path.size());
    REQUIRE(::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  }

  /// How much of it went out; 0 once the server has closed.
  std::size_t send(std::string_view bytes) const {
    const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    return sent > 0 ? static_cast<std::size_t>(sent) : 0;
  }

  /// What is there by now.
  void read() {
    char chunk[16 * 1024];
    ssize_t bytes = 0;
    while (!ended_ && (bytes = ::recv(fd_.get(), chunk, sizeof chunk, 0)) > 0) {
      received_.append(chunk, static_cast<std::size_t>(bytes));
    }
    ended_ = ended_ || bytes == 0 || (bytes < 0 && errno != EAGAIN);
  }

  void finish_sending() const { ::shutdown(fd_.get(), SHUT_WR); }

  void close() { fd_.reset(); }

  [[nodiscard]] int fd() const { return fd_.get(); }

  [[nodiscard]] bool open() const { return fd_.valid(); }

  [[nodiscard]] bool ended() const { return ended_; }  ///< the server has closed, and all of it is read

  [[nodiscard]] std::string& received() { return received_; }

 private:
  UniqueFd fd_;
  std::string received_;
  bool ended_ = false;
};

/// Everything the server can do now is done.
inline void settle(boost::asio::io_context& io) {
  while (io.poll() > 0) {
  }
}

/// Until it is so, which the server has to bring about by itself.
template <typename Condition>
void settle_until(boost::asio::io_context& io, Condition condition) {
  settle(io);
  while (!condition()) {
    REQUIRE(io.run_one_for(std::chrono::seconds(10)) > 0);
    settle(io);
  }
}

/// Until it is so, which a thread of the server brings about, within ten seconds.
template <typename Condition>
void wait_until(boost::asio::io_context& io, Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  for (settle(io); !condition(); settle(io)) {
    REQUIRE(std::chrono::steady_clock::now() < deadline);
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

}  // namespace gradsync::fuzz
