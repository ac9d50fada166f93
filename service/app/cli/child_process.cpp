#include "app/cli/child_process.hpp"

#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <spawn.h>

namespace gradsync::app {

namespace {

/// The variables, which must outlive it, and then those of this process but for the address of a daemon.
std::vector<char*> child_environment(const std::vector<std::string>& variables) {
  constexpr std::string_view kAddress = "GRADSYNC_ADDRESS=";
  std::vector<char*> environment;
  for (const std::string& variable : variables) {
    environment.push_back(const_cast<char*>(variable.c_str()));
  }
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    if (!std::string_view{*entry}.starts_with(kAddress)) {
      environment.push_back(*entry);
    }
  }
  environment.push_back(nullptr);
  return environment;
}

}  // namespace

std::optional<int> ChildProcess::start(
    const std::vector<std::string>& command, const std::vector<std::string>& variables, const sigset_t& mask
) {
  std::vector<char*> arguments;
  for (const std::string& argument : command) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  std::vector<char*> environment = child_environment(variables);
  sigset_t defaults;
  ::sigemptyset(&defaults);
  ::sigaddset(&defaults, SIGPIPE);
  ::sigaddset(&defaults, SIGXFSZ);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setsigmask(&attributes, &mask);
  ::posix_spawnattr_setsigdefault(&attributes, &defaults);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  const int error = ::posix_spawnp(&pid_, arguments[0], nullptr, &attributes, arguments.data(), environment.data());
  ::posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    pid_ = 0;
    return error;
  }
  const int fd = static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0));
  if (fd < 0) {  // its end would never be seen: better not to run it
    const int problem = errno;
    ::kill(pid_, SIGKILL);
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
    pid_ = 0;
    return problem;
  }
  pidfd_.assign(fd);
  return std::nullopt;
}

void ChildProcess::on_exit(std::function<void(int code)> handler) {
  pidfd_.async_wait(
      boost::asio::posix::stream_descriptor::wait_read,
      [this, handler = std::move(handler)](boost::system::error_code error) {
        if (!error) {
          handler(reap());
        }
      }
  );
}

void ChildProcess::signal(int number) const {
  if (pid_ > 0) {
    ::kill(pid_, number);  // not reaped yet, so the pid is still its own
  }
}

int ChildProcess::reap() {
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = 0;
  pidfd_.close();
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace gradsync::app
