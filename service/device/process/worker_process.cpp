#include "device/process/worker_process.hpp"

#include "device/device_error.hpp"

#include <fmt/format.h>

#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <system_error>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <spawn.h>
#include <string_view>

namespace gradsync::device {

namespace {

constexpr int kWorkerFd = 3;

std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) {
    pointers.push_back(const_cast<char*>(text.c_str()));
  }
  pointers.push_back(nullptr);
  return pointers;
}

/// That of this process, but for what is given.
std::vector<std::string> environment_with(const std::vector<std::string>& given) {
  const auto name_of = [](std::string_view variable) { return variable.substr(0, variable.find('=')); };
  std::vector<std::string> all = given;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (std::ranges::none_of(given, [&](const std::string& other) { return name_of(other) == name_of(*variable); })) {
      all.emplace_back(*variable);
    }
  }
  return all;
}

/// Starts it with signals blocked that are meant for the supervisor. Returns an error number.
int spawn(
    const std::vector<std::string>& command, const std::vector<std::string>& environment, int socket, pid_t& pid
) {
  std::vector<char*> arguments = pointers_to(command);
  std::vector<char*> variables = pointers_to(environment);
  sigset_t blocked;
  ::sigemptyset(&blocked);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) {
    ::sigaddset(&blocked, number);
  }
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setsigmask(&attributes, &blocked);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, socket, kWorkerFd);
  ::posix_spawn_file_actions_addclosefrom_np(&actions, kWorkerFd + 1);
  const int error = ::posix_spawn(&pid, arguments[0], &actions, &attributes, arguments.data(), variables.data());
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  return error;
}

std::string words_of(int status) {
  return WIFSIGNALED(status) ? fmt::format("ended by signal {}", WTERMSIG(status))
                             : fmt::format("ended with exit code {}", WEXITSTATUS(status));
}

}  // namespace

WorkerProcess::WorkerProcess(
    const std::vector<std::string>& command, const std::vector<std::string>& environment, const UniqueFd& socket
) {
  if (const int error = spawn(command, environment_with(environment), socket.get(), pid_); error != 0) {
    throw DeviceError(
        fmt::format("the worker '{}' cannot be started: {}", command[0], std::generic_category().message(error))
    );
  }
  pidfd_.reset(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  if (!pidfd_.valid()) {  // its end would never be seen: better not to run it
    const int error = errno;
    kill();
    ::waitpid(pid_, nullptr, 0);
    throw DeviceError(fmt::format("pidfd_open for a worker: {}", std::generic_category().message(error)));
  }
}

WorkerProcess::~WorkerProcess() {
  if (!wait_end(Milliseconds(0))) {
    kill();
    (void)wait_end(Milliseconds(1000));
  }
}

void WorkerProcess::kill() const {
  if (!end_) {  // not reaped yet, so the pid is still its own
    ::kill(pid_, SIGKILL);
  }
}

std::optional<std::string> WorkerProcess::wait_end(Milliseconds timeout) {
  const TimePoint deadline = std::chrono::steady_clock::now() + timeout;
  while (!end_) {
    const auto left = std::chrono::duration_cast<Milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd watched{pidfd_.get(), POLLIN, 0};
    const int ready = ::poll(&watched, 1, static_cast<int>(std::max<Milliseconds::rep>(left.count(), 0)));
    if (ready == 0) {
      break;
    }
    if (ready > 0) {
      int status = 0;
      end_ = ::waitpid(pid_, &status, WNOHANG) == pid_ ? words_of(status) : "ended, and was reaped elsewhere";
    }
  }
  return end_;
}

}  // namespace gradsync::device
