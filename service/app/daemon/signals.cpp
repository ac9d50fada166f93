#include "app/daemon/signals.hpp"

#include <sys/signalfd.h>
#include <unistd.h>

#include <stdexcept>

namespace gradsync::app {

namespace {

sigset_t set_of(const std::vector<int>& signals) {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int number : signals) {
    ::sigaddset(&set, number);
  }
  return set;
}

int open_signalfd(const std::vector<int>& signals) {
  const sigset_t set = set_of(signals);
  const int fd = ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (fd < 0) {
    throw std::runtime_error("signalfd failed");
  }
  return fd;
}

}  // namespace

sigset_t block_signals(const std::vector<int>& signals) {
  const sigset_t set = set_of(signals);
  sigset_t before;
  ::pthread_sigmask(SIG_BLOCK, &set, &before);
  return before;
}

Signals::Signals(boost::asio::io_context& io, const std::vector<int>& signals, Handler handler)
    : descriptor_(io, open_signalfd(signals)), handler_(std::move(handler)) {
  wait();
}

void Signals::stop() {
  boost::system::error_code ignored;
  descriptor_.close(ignored);
}

void Signals::wait() {
  descriptor_.async_wait(boost::asio::posix::stream_descriptor::wait_read, [this](boost::system::error_code error) {
    if (!error) {
      read();
    }
  });
}

void Signals::read() {
  signalfd_siginfo info{};
  while (descriptor_.is_open() && ::read(descriptor_.native_handle(), &info, sizeof info) == sizeof info) {
    handler_(static_cast<int>(info.ssi_signo), info.ssi_code == SI_KERNEL);
  }
  if (descriptor_.is_open()) {
    wait();
  }
}

}  // namespace gradsync::app
