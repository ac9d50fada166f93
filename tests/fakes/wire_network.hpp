#pragma once
// Wires between lanes of one process, without sockets: real bytes go from the memory of one lane to that of another,
// by way of a network of its own. Either at once, on the thread that sends or asks, or one movement at a time, when a
// test says so, in an order that a seed decides. As on sockets, a message leaves its sender before anybody asks for it,
// and stays on the way until somebody does.
//
// The descriptors of a connection are the two ends of a socket pair: they only say which ends belong together, and
// serve as connections of the real wire as well.

#include "device/wire/wire.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace gradsync::fakes {

class WireNetwork {
 public:
  enum class Delivery { AtOnce, OneByOne };

  explicit WireNetwork(Delivery delivery = Delivery::AtOnce, std::uint64_t seed = 1)
      : delivery_(delivery), random_(seed) {}

  /// The connection of node `a` to `b`, and that of `b` to `a`.
  std::pair<device::NodeConnection, device::NodeConnection> connect(plan::TransferNode a, plan::TransferNode b) {
    const std::lock_guard lock(mutex_);
    auto [partials_a, partials_b] = pair();
    auto [results_a, results_b] = pair();
    return std::pair(
        device::NodeConnection{b, std::move(partials_a), std::move(results_a)},
        device::NodeConnection{a, std::move(partials_b), std::move(results_b)}
    );
  }

  /// For the lanes of all nodes alike.
  [[nodiscard]] device::MakeWire maker() {
    return [this](std::vector<device::NodeConnection> connections, std::function<void()> wake) {
      return std::make_unique<End>(*this, std::move(connections), std::move(wake));
    };
  }

  /// Moves one message one step further: out of the memory of its sender, or into that of its receiver. False: nothing
  /// can move until a lane does something.
  bool deliver_one() {
    const std::lock_guard lock(mutex_);
    std::vector<Direction*> possible;
    for (const auto& direction : directions_) {
      if (can_leave(*direction) || can_arrive(*direction)) {
        possible.push_back(direction.get());
      }
    }
    if (possible.empty()) {
      return false;
    }
    Direction& chosen = *possible[random_() % possible.size()];
    if (can_leave(chosen) && (!can_arrive(chosen) || random_() % 2 == 0)) {
      leave(chosen);
    } else {
      arrive(chosen);
    }
    return true;
  }

  /// Breaks every connection between two nodes: both ends have a fault.
  void cut(plan::TransferNode a, plan::TransferNode b) {
    const std::lock_guard lock(mutex_);
    for (End* end : ends_) {
      for (const plan::TransferNode peer : {a, b}) {
        if (end->connects(a + b - peer, peer)) {
          end->fail(peer, "the connection was cut");
        }
      }
    }
  }

  [[nodiscard]] std::size_t messages() {
    const std::lock_guard lock(mutex_);
    return messages_;
  }

 private:
  class End;

  struct Asked {
    device::WireMessage message;
    std::span<std::byte> bytes;
  };

  struct Sent {
    device::WireMessage message;
    std::span<const std::byte> bytes;
  };

  struct Flying {
    device::WireMessage message;
    std::vector<std::byte> bytes;
  };

  /// One way of a connection.
  struct Direction {
    plan::TransferNode from = 0;
    plan::TransferNode to = 0;
    End* sender = nullptr;
    End* receiver = nullptr;
    bool closed = false;  ///< its sender is gone
    std::deque<Sent> sent;
    std::deque<Flying> flying;
    std::deque<Asked> asked;
  };

  class End final : public device::Wire {
   public:
    End(WireNetwork& network, std::vector<device::NodeConnection> connections, std::function<void()> wake)
        : network_(network), wake_(std::move(wake)), connections_(std::move(connections)) {
      const std::lock_guard lock(network_.mutex_);
      for (const device::NodeConnection& connection : connections_) {
        take_up(connection.node, plan::Payload::Partial, connection.partials);
        take_up(connection.node, plan::Payload::Result, connection.results);
      }
      network_.ends_.push_back(this);
    }

    ~End() override {
      const std::lock_guard lock(network_.mutex_);
      std::erase(network_.ends_, this);
      for (const auto& [link, direction] : out_) {
        direction->sender = nullptr;
        direction->sent.clear();
        direction->closed = true;
        network_.note_end(*direction);
      }
      for (const auto& [link, direction] : in_) {
        direction->receiver = nullptr;
        direction->asked.clear();
      }
    }

    void send(const device::WireMessage& message, std::span<const std::byte> bytes) override {
      const std::lock_guard lock(network_.mutex_);
      Direction& direction = *out_.at({message.peer, message.payload});
      direction.sent.push_back({message, bytes});
      totals_[message.peer].sent_bytes += bytes.size();
      network_.move(direction);
    }

    void receive(const device::WireMessage& message, std::span<std::byte> bytes) override {
      const std::lock_guard lock(network_.mutex_);
      Direction& direction = *in_.at({message.peer, message.payload});
      direction.asked.push_back({message, bytes});
      network_.move(direction);
    }

    void take_done(std::vector<device::WireDone>& done) override {
      const std::lock_guard lock(network_.mutex_);
      done.insert(done.end(), done_.begin(), done_.end());
      done_.clear();
    }

    [[nodiscard]] std::optional<device::WireFault> fault() const override {
      const std::lock_guard lock(network_.mutex_);
      return fault_;
    }

    [[nodiscard]] std::vector<device::WireTotals> totals() const override {
      const std::lock_guard lock(network_.mutex_);
      std::vector<device::WireTotals> all;
      for (const auto& [peer, bytes] : totals_) {
        all.push_back({peer, bytes.sent_bytes, bytes.received_bytes});
      }
      return all;
    }

    // Under the lock of the network:

    [[nodiscard]] bool connects(plan::TransferNode own, plan::TransferNode peer) const {
      const auto found = out_.find({peer, plan::Payload::Partial});
      return found != out_.end() && found->second->from == own;
    }

    [[nodiscard]] bool failed() const { return fault_.has_value(); }

    void finish(const device::WireMessage& message, bool received, std::uint64_t bytes) {
      done_.push_back({message, received});
      totals_[message.peer].received_bytes += received ? bytes : 0;
      wake_();
    }

    void fail(plan::TransferNode peer, std::string message) {
      if (!fault_) {
        fault_ = device::WireFault{peer, std::move(message)};
        wake_();
      }
    }

   private:
    using Link = std::pair<plan::TransferNode, plan::Payload>;

    void take_up(plan::TransferNode peer, plan::Payload payload, const UniqueFd& fd) {
      const auto [out, in] = network_.sides_.at(name_of(fd));
      out_[{peer, payload}] = out;
      in_[{peer, payload}] = in;
      out->sender = this;
      out->to = in->from = peer;
      in->receiver = this;
      totals_[peer] = {};
    }

    WireNetwork& network_;
    std::function<void()> wake_;
    std::vector<device::NodeConnection> connections_;
    std::map<Link, Direction*> out_;
    std::map<Link, Direction*> in_;
    std::vector<device::WireDone> done_;
    std::optional<device::WireFault> fault_;
    std::map<plan::TransferNode, device::WireTotals> totals_;
  };

  static std::pair<dev_t, ino_t> name_of(const UniqueFd& fd) {
    struct stat status {};

    if (::fstat(fd.get(), &status) != 0) {
      throw std::runtime_error("a connection without a descriptor");
    }
    return {status.st_dev, status.st_ino};
  }

  std::pair<UniqueFd, UniqueFd> pair() {
    int fds[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
      throw std::runtime_error("no socket pair");
    }
    std::pair<UniqueFd, UniqueFd> made{UniqueFd(fds[0]), UniqueFd(fds[1])};
    Direction* const there = directions_.emplace_back(std::make_unique<Direction>()).get();
    Direction* const back = directions_.emplace_back(std::make_unique<Direction>()).get();
    sides_[name_of(made.first)] = {there, back};
    sides_[name_of(made.second)] = {back, there};
    return made;
  }

  [[nodiscard]] static bool can_leave(const Direction& direction) {
    return !direction.sent.empty() && direction.sender != nullptr && !direction.sender->failed();
  }

  [[nodiscard]] static bool can_arrive(const Direction& direction) {
    return !direction.flying.empty() && !direction.asked.empty() && !direction.receiver->failed();
  }

  void move(Direction& direction) {
    while (delivery_ == Delivery::AtOnce && (can_leave(direction) || can_arrive(direction))) {
      can_leave(direction) ? leave(direction) : arrive(direction);
    }
  }

  void leave(Direction& direction) {
    const Sent sent = direction.sent.front();
    direction.sent.pop_front();
    direction.flying.push_back({sent.message, {sent.bytes.begin(), sent.bytes.end()}});
    direction.sender->finish(sent.message, false, sent.bytes.size());
  }

  void arrive(Direction& direction) {
    Flying flying = std::move(direction.flying.front());
    direction.flying.pop_front();
    const Asked asked = direction.asked.front();
    direction.asked.pop_front();
    End& receiver = *direction.receiver;
    device::WireMessage named = flying.message;
    named.peer = asked.message.peer;  // each end names the other one
    if (named != asked.message || flying.bytes.size() != asked.bytes.size()) {
      receiver.fail(asked.message.peer, "a message that is not the one that was asked for");
      return;
    }
    std::memcpy(asked.bytes.data(), flying.bytes.data(), flying.bytes.size());
    ++messages_;
    receiver.finish(asked.message, true, flying.bytes.size());
    note_end(direction);
  }

  /// What is on the way arrives before the end does.
  static void note_end(Direction& direction) {
    if (direction.closed && direction.flying.empty() && direction.receiver != nullptr) {
      direction.receiver->fail(direction.from, "the other end closed the connection");
    }
  }

  Delivery delivery_;
  std::mt19937_64 random_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Direction>> directions_;
  std::map<std::pair<dev_t, ino_t>, std::pair<Direction*, Direction*>> sides_;  ///< of an end: out and in
  std::vector<End*> ends_;
  std::size_t messages_ = 0;
};

}  // namespace gradsync::fakes
