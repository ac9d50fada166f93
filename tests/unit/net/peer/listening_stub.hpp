#pragma once
// Listening sockets of tests that are no daemon: one that accepts when told, and a proxy that stops forwarding when
// told. Both are at 127.0.0.1, at any free port.

#include "base/unique_fd.hpp"
#include "unit/net/raw_client.hpp"

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>

namespace gradsync::net {

class ListeningStub {
 public:
  ListeningStub();

  [[nodiscard]] const std::string& endpoint() const { return endpoint_; }

  [[nodiscard]] std::uint16_t port() const { return port_; }

  /// The next connection; fails the test at the deadline.
  [[nodiscard]] RawClient accept() const;

  /// From now on connections are refused.
  void close() { fd_.reset(); }

 private:
  UniqueFd fd_;
  std::uint16_t port_ = 0;
  std::string endpoint_;
};

/// Forwards the bytes of one connection, on a thread of its own.
class FreezingProxy {
 public:
  explicit FreezingProxy(const std::string& target);
  ~FreezingProxy();
  FreezingProxy(const FreezingProxy&) = delete;
  FreezingProxy& operator=(const FreezingProxy&) = delete;

  [[nodiscard]] const std::string& endpoint() const { return listening_.endpoint(); }

  void freeze_to_target() { to_target_ = false; }

  void freeze_from_target() { from_target_ = false; }

 private:
  void run(const std::string& target);

  ListeningStub listening_;
  std::atomic<bool> to_target_{true};
  std::atomic<bool> from_target_{true};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace gradsync::net
