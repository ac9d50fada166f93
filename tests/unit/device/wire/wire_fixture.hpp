#pragma once
// Pairs of sockets, wires with an owner that waits for what is done, and ends of connections that a test reads and
// writes itself.

#include "device/device_error.hpp"
#include "device/wire/socket_wire.hpp"
#include "device/wire/wire.hpp"
#include "device/wire/wire_frame.hpp"

#include <gtest/gtest.h>

#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <netinet/in.h>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

namespace gradsync::device {

inline constexpr std::chrono::seconds kWireDeadline{30};

enum class SocketKind { Unix, Tcp };

inline std::pair<UniqueFd, UniqueFd> unix_sockets() {
  int fds[2] = {-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

inline std::pair<UniqueFd, UniqueFd> tcp_sockets() {
  const UniqueFd listener{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* place = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(::bind(listener.get(), place, size), 0);
  EXPECT_EQ(::listen(listener.get(), 1), 0);
  EXPECT_EQ(::getsockname(listener.get(), place, &size), 0);
  UniqueFd one{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  EXPECT_EQ(::connect(one.get(), place, size), 0);
  return {std::move(one), UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC))};
}

inline std::pair<UniqueFd, UniqueFd> connected_sockets(SocketKind kind) {
  return kind == SocketKind::Unix ? unix_sockets() : tcp_sockets();
}

/// Both connections between two nodes: what the first gets, and what the second gets.
inline std::pair<NodeConnection, NodeConnection> connect_nodes(
    SocketKind kind, plan::TransferNode one, plan::TransferNode other
) {
  auto partials = connected_sockets(kind);
  auto results = connected_sockets(kind);
  return {
      NodeConnection{other, std::move(partials.first), std::move(results.first)},
      NodeConnection{one, std::move(partials.second), std::move(results.second)}};
}

inline std::vector<NodeConnection> only(NodeConnection connection) {
  std::vector<NodeConnection> connections;
  connections.push_back(std::move(connection));
  return connections;
}

inline WireMessage message_to(
    plan::TransferNode peer, std::uint32_t number, plan::Payload payload = plan::Payload::Partial
) {
  return {peer, payload, 7, 2, number};
}

/// Bytes that differ from seed to seed and from place to place.
inline std::vector<std::byte> bytes_of(std::uint64_t seed, std::size_t count) {
  std::mt19937_64 random{seed};
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; i += sizeof(std::uint64_t)) {
    const std::uint64_t value = random();
    std::memcpy(bytes.data() + i, &value, std::min(sizeof value, count - i));
  }
  return bytes;
}

/// The owner of a wire. It looks for what is done only when it was woken, as a lane does.
class OwnedWire {
 public:
  explicit OwnedWire(std::vector<NodeConnection> connections)
      : wire_(make_socket_wire(std::move(connections), [this] { wake(); })) {}

  OwnedWire(std::vector<NodeConnection> connections, std::chrono::milliseconds between_looks)
      : wire_(make_watchful_wire(
            std::move(connections), [this] { wake(); }, between_looks
        )) {}

  ~OwnedWire() { wire_.reset(); }

  OwnedWire(const OwnedWire&) = delete;
  OwnedWire& operator=(const OwnedWire&) = delete;

  Wire& operator*() { return *wire_; }

  Wire* operator->() { return wire_.get(); }

  void end() { wire_.reset(); }

  /// What is done next, that many messages of it.
  std::vector<WireDone> done(std::size_t count) {
    std::vector<WireDone> done = std::exchange(left_, {});
    while (done.size() < count && wait()) {
      wire_->take_done(done);
      const std::optional<WireFault> fault = done.size() < count ? wire_->fault() : std::nullopt;
      if (fault) {
        ADD_FAILURE() << "a fault after " << done.size() << " of " << count << ": " << fault->message;
        return done;
      }
    }
    EXPECT_GE(done.size(), count);
    if (done.size() > count) {
      left_.assign(done.begin() + static_cast<std::ptrdiff_t>(count), done.end());
      done.resize(count);
    }
    return done;
  }

  WireFault fault() {
    std::optional<WireFault> fault = wire_->fault();
    while (!fault && wait()) {
      fault = wire_->fault();
    }
    EXPECT_TRUE(fault.has_value());
    return fault.value_or(WireFault{});
  }

  WireTotals totals() { return wire_->totals().front(); }

 private:
  void wake() {
    const std::lock_guard lock(mutex_);
    woken_ = true;
    condition_.notify_one();
  }

  bool wait() {
    std::unique_lock lock(mutex_);
    const bool in_time = condition_.wait_for(lock, kWireDeadline, [this] { return woken_; });
    EXPECT_TRUE(in_time) << "the wire did not wake its owner";
    woken_ = false;
    return in_time;
  }

  std::mutex mutex_;
  std::condition_variable condition_;
  bool woken_ = false;
  std::vector<WireDone> left_;
  std::unique_ptr<Wire> wire_;
};

/// `place`: of the node in the list of totals.
inline void wait_until_received(OwnedWire& wire, std::size_t place, std::uint64_t bytes) {
  const auto deadline = std::chrono::steady_clock::now() + kWireDeadline;
  while (wire->totals()[place].received_bytes < bytes && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  ASSERT_GE(wire->totals()[place].received_bytes, bytes);
}

/// Node 1 as the test plays it, byte by byte, for a wire of node 0.
struct PlayedNode {
  UniqueFd partials;
  UniqueFd results;

  void write(std::string_view text) const { write(std::as_bytes(std::span(text))); }

  void write(std::span<const std::byte> bytes) const {
    while (!bytes.empty()) {
      const ssize_t count = ::send(partials.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      ASSERT_GT(count, 0) << std::strerror(errno);  // NOLINT(concurrency-mt-unsafe)
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    }
  }

  /// Until the other end is closed, or that many are here.
  [[nodiscard]] std::vector<std::byte> read(std::size_t count) const {
    std::vector<std::byte> bytes(count);
    std::size_t here = 0;
    ssize_t more = 1;
    while (here < count && (more = ::recv(partials.get(), bytes.data() + here, count - here, 0)) > 0) {
      here += static_cast<std::size_t>(more);
    }
    bytes.resize(here);
    return bytes;
  }

  /// What is left in the connection of partial sums, as its sender sees it.
  [[nodiscard]] int unread() const {
    int bytes = -1;
    EXPECT_EQ(::ioctl(partials.get(), TIOCOUTQ, &bytes), 0);
    return bytes;
  }
};

struct Played {
  NodeConnection connection;  ///< for the wire of node 0
  PlayedNode node;
};

inline Played play_node(SocketKind kind = SocketKind::Unix) {
  auto [mine, theirs] = connect_nodes(kind, 0, 1);
  return {std::move(mine), {std::move(theirs.partials), std::move(theirs.results)}};
}

/// A frame of an attempt 7 and bucket 2, as `message_to` names them.
inline WireFrame frame(std::uint32_t number, std::uint64_t bytes) { return frame_of(message_to(1, number), bytes); }

}  // namespace gradsync::device
