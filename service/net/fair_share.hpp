#pragma once
// How much of the io thread the long messages of a process may have. While one is read nobody else is served, and a
// step that comes meanwhile waits for all of it, so each process has an account: it may run ahead by `kBurst`, which is
// about a declaration of 100,000 tensors, and then gets `kShare` of the thread. Who has used more is not refused
// anything: its connections are read later. Short messages, those of steps among them, are free: connections take
// turns. Peers by TCP count as one, and a process of another pid namespace, whose number the kernel does not tell, as
// one for each connection.
//
// Thread: io only. Internal to net.

#include "base/clock.hpp"
#include "net/server.hpp"

#include <cstdint>
#include <map>
#include <utility>

namespace gradsync::net {

class FairShare {
 public:
  static constexpr Milliseconds kBurst{1'000};
  static constexpr double kShare = 0.05;
  static constexpr Milliseconds kShortTurn{1};
  static constexpr Milliseconds kLongestPause{1'000};

  /// Notes what a message of the peer has cost. How long to wait before the next one of its connection is read; 0: not.
  [[nodiscard]] Duration charge(const PeerIdentity& peer, ConnectionId connection, Duration computed, TimePoint now);

  [[nodiscard]] std::size_t accounts() const { return used_up_to_.size(); }

 private:
  using Process = std::pair<std::uint32_t, std::int64_t>;  ///< uid, pid; or the connection, negative

  [[nodiscard]] static Process process_of(const PeerIdentity& peer, ConnectionId connection);
  void forget_the_idle(TimePoint now);

  /// The moment at which the account is level again; in the past: it is.
  std::map<Process, TimePoint> used_up_to_;
  std::size_t look_again_at_ = 1024;  ///< accounts
};

}  // namespace gradsync::net
