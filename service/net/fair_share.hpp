#pragma once
// How much of the io thread a process may have for what does not step anybody's training. While one of its messages is
// read nobody else is served, so each process has two accounts of `kShare` of the thread: one for messages that are
// understood, which may run ahead by `kBurst`, a declaration of 20,000 tensors, and one for what is refused, asks for a
// page or is no message, by `kRefusedBurst`; two, so that a ping of who has declared much is not held against it. Who
// has used more of either, while others send short messages, is not refused anything: its connections are read later.
// Short messages that are understood, those of steps among them, are free: connections take turns. Peers by TCP count
// as one, and a process of another pid namespace, whose number the kernel does not tell, as one for each connection.
//
// Thread: io only. Internal to net.

#include "base/clock.hpp"
#include "net/server.hpp"

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
  static constexpr Milliseconds kShortTurn{1};      ///< of an understood message: free
  static constexpr Milliseconds kShortestPause{1};  ///< refused messages are short: some are read at a time
  static constexpr Milliseconds kLongestPause{1'000};
  static constexpr Milliseconds kBusy{1'000};  ///< so long after a free message of another process there is one to wait

  /// Notes what a message of the peer has cost, beyond what was prepaid. Returns `pause`.
  Duration charge(
      const PeerIdentity& peer,
      ConnectionId connection,
      Worth worth,
      Duration computed,
      TimePoint now,
      Duration prepaid = Duration::zero()
  );

  /// How long to wait for the account before a message of the peer is read; 0: not. Ask again then: others of the
  /// process may have gone first.
  [[nodiscard]] Duration pause(const PeerIdentity& peer, ConnectionId connection, Worth worth, TimePoint now) const;

  /// For who has waited and goes on: what the next message may cost is noted now, so that of all connections that wait
  /// for one account one goes on at a time.
  void prepay(const PeerIdentity& peer, ConnectionId connection, Worth worth, Duration cost, TimePoint now);

  /// Processes with an account.
  [[nodiscard]] std::size_t accounts() const { return used_up_to_.size(); }

 private:
  using Process = std::pair<std::uint32_t, std::int64_t>;  ///< uid, pid; or the connection, negative

  /// By Worth: the moment at which the account is level again; in the past: it is.
  using Accounts = std::array<TimePoint, 2>;

  struct Seen {
    Process process;
    TimePoint at;
  };

  [[nodiscard]] static Process process_of(const PeerIdentity& peer, ConnectionId connection);
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
