#pragma once
// Limits how much of the io thread a process may use for messages that do not belong to a step. While one message is
// read, no other connection is served, so each process has two accounts of `kShare` of the thread. One is for messages
// that are understood and may run ahead by `kBurst` (a declaration of 20,000 tensors). The other is for refused
// messages, requests for pages and control frames, and may run ahead by `kRefusedBurst`. There are two, so that a large
// declaration does not delay pings. A process that has used more is not refused: while others send short messages, its
// connections are read later. Short messages that are understood are free, those of steps among them. All peers by TCP
// count as one process; each connection from another pid namespace counts as one, because its pid is unknown.
//
// Thread: io only. Internal to net.

#include "base/clock.hpp"
#include "net/types.hpp"

#include <array>
#include <cstdint>
#include <map>
#include <utility>

namespace gradsync::net {

class FairShare {
 public:
  enum class Worth : std::uint8_t { Understood, Refused };

  static constexpr Milliseconds kBurst{150};
  static constexpr Milliseconds kRefusedBurst{5};
  static constexpr double kShare = 0.05;
  static constexpr Milliseconds kShortTurn{1};      ///< an understood message is free up to this time
  static constexpr Milliseconds kShortestPause{1};  ///< refused messages are short: some are read at a time
  static constexpr Milliseconds kLongestPause{1'000};
  static constexpr Milliseconds kBusy{1'000};  ///< a process counts as waiting for so long after its last free message

  /// Notes what a message of the peer has cost, beyond what was prepaid. Returns `pause`.
  Duration charge(
      const PeerIdentity& peer,
      ConnectionId connection,
      Worth worth,
      Duration computed,
      TimePoint now,
      Duration prepaid = Duration::zero()
  );

  /// Returns how long to wait for the account before a message of the peer is read; 0 for no wait. The caller asks
  /// again after the wait, because other connections of the process may have gone first.
  [[nodiscard]] Duration pause(const PeerIdentity& peer, ConnectionId connection, Worth worth, TimePoint now) const;

  /// Call it when a connection has waited and goes on. It notes what the next message may cost, so that connections
  /// that wait for one account go on one at a time.
  void prepay(const PeerIdentity& peer, ConnectionId connection, Worth worth, Duration cost, TimePoint now);

  using Process = std::pair<std::uint32_t, std::int64_t>;  ///< uid, pid; or the connection, negative

  [[nodiscard]] static Process process_of(const PeerIdentity& peer, ConnectionId connection);

  /// Processes with an account.
  [[nodiscard]] std::size_t accounts() const { return used_up_to_.size(); }

 private:
  /// By Worth: the moment at which the account is level again, or one in the past.
  using Accounts = std::array<TimePoint, 2>;

  struct Seen {
    Process process;
    TimePoint at;
  };

  TimePoint note_used(const Process& process, Worth worth, Duration used, TimePoint now);
  void note_free(const Process& process, TimePoint now);
  [[nodiscard]] Duration pause_of(const Process& process, TimePoint used_up_to, Worth worth, TimePoint now) const;
  [[nodiscard]] bool others_are_served(const Process& process, TimePoint now) const;
  void forget_the_idle(TimePoint now);

  std::map<Process, Accounts> used_up_to_;
  std::array<Seen, 2> served_{};      ///< the last free messages of two processes, the later one first
  std::size_t look_again_at_ = 1024;  ///< processes
};

}  // namespace gradsync::net
