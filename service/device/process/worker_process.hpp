#pragma once
// The process behind a process lane: started with one end of the lane's socket, watched by its pidfd, killed, reaped.
// It belongs to the thread that starts it: the worker asks to be killed when that thread ends (PR_SET_PDEATHSIG).

#include "base/clock.hpp"
#include "base/unique_fd.hpp"

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace gradsync::device {

class WorkerProcess {
 public:
  /// `command` gets `socket` as its descriptor 3, and nothing else of this process but the standard streams and the
  /// environment, in which the "NAME=value" of `environment` take the place of what is there. It does not see the
  /// signals of a terminal or of a service manager: its supervisor drains, and then ends it. Throws DeviceError where
  /// it cannot be started.
  WorkerProcess(
      const std::vector<std::string>& command, const std::vector<std::string>& environment, const UniqueFd& socket
  );
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;
  ~WorkerProcess();  ///< kills it if it lives; does not wait for one that cannot die

  [[nodiscard]] pid_t pid() const { return pid_; }

  [[nodiscard]] int pidfd() const { return pidfd_.get(); }  ///< readable when it has ended

  void kill() const;  ///< SIGKILL

  /// Waits for its end, at most that long, and says in words how it ended. Nothing: it lives.
  [[nodiscard]] std::optional<std::string> wait_end(Milliseconds timeout);

 private:
  pid_t pid_ = 0;
  UniqueFd pidfd_;
  std::optional<std::string> end_;
};

}  // namespace gradsync::device
