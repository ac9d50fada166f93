#include "app/daemon/systemd_notifier.hpp"

#include <fmt/format.h>

#include <system_error>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

namespace gradsync::app {

namespace {

std::optional<std::int64_t> systemd_number(const Environment& environment, const char* name) {
  const auto found = environment.find(name);
  if (found == environment.end()) {
    return std::nullopt;
  }
  std::int64_t value = 0;
  const char* end = found->second.data() + found->second.size();
  const auto [behind, error] = std::from_chars(found->second.data(), end, value);
  return error == std::errc{} && behind == end && value > 0 ? std::optional(value) : std::nullopt;
}

/// Half of the time in which the watchdog wants to hear something; 0 where none waits, or waits for another process.
Milliseconds watchdog_period(const Environment& environment) {
  const auto time_us = systemd_number(environment, "WATCHDOG_USEC");
  if (!time_us || systemd_number(environment, "WATCHDOG_PID").value_or(::getpid()) != ::getpid()) {
    return Milliseconds{0};
  }
  return std::max(Milliseconds{*time_us / 2'000}, Milliseconds{1});
}

}  // namespace

SystemdNotifier::SystemdNotifier(boost::asio::io_context& io, const Environment& environment) : timer_(io) {
  const auto named = environment.find("NOTIFY_SOCKET");
  if (named == environment.end()) {
    return;
  }
  const std::string& path = named->second;
  const bool known = path.starts_with('/') || path.starts_with('@');
  if (!known || path.size() >= sizeof address_.sun_path) {
    return;  // another kind of socket, which only a virtual machine has
  }
  address_.sun_family = AF_UNIX;
  std::memcpy(address_.sun_path, path.data(), path.size());
  if (path.front() == '@') {
    address_.sun_path[0] = '\0';  // a name without a file
  }
  address_bytes_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  socket_.reset(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  period_ = watchdog_period(environment);
}

void SystemdNotifier::tell_ready(std::string_view status) {
  send(fmt::format("READY=1\nSTATUS={}", status));
  if (socket_.valid() && period_.count() > 0) {
    beat();
  }
}

void SystemdNotifier::tell_stopping() { send("STOPPING=1\nSTATUS=draining"); }

void SystemdNotifier::close() {
  socket_.reset();
  timer_.cancel();
}

void SystemdNotifier::send(std::string_view message) const {
  if (socket_.valid()) {
    const auto* address = reinterpret_cast<const sockaddr*>(&address_);
    (void)::sendto(socket_.get(), message.data(), message.size(), MSG_DONTWAIT | MSG_NOSIGNAL, address, address_bytes_);
  }
}

void SystemdNotifier::beat() {
  send("WATCHDOG=1");
  timer_.expires_after(period_);
  timer_.async_wait([this](boost::system::error_code error) {
    if (!error && socket_.valid()) {
      beat();
    }
  });
}

}  // namespace gradsync::app
