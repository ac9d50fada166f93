#pragma once
// The command of `run`: started with the signal state this process itself was started with, watched by its pidfd.
// It stays in our process group, so that it keeps the terminal and ^C reaches it from there.

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include <sys/types.h>

#include <csignal>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace gradsync::app {

class ChildProcess {
 public:
  explicit ChildProcess(boost::asio::io_context& io) : pidfd_(io) {}

  /// `variables` are added to the environment. Returns the error number of a command that could not be started.
  [[nodiscard]] std::optional<int> start(
      const std::vector<std::string>& command, const std::vector<std::string>& variables, const sigset_t& mask
  );

  /// Calls back once with the exit code: the child's own, or 128 + the signal that ended it.
  void on_exit(std::function<void(int code)> handler);

  void signal(int number) const;

 private:
  [[nodiscard]] int reap();

  pid_t pid_ = 0;
  boost::asio::posix::stream_descriptor pidfd_;
};

}  // namespace gradsync::app
