#pragma once
// Executes the messages of processes in turn where they come faster than the io thread executes them. A process that
// keeps a thousand connections busy would otherwise have a thousand messages executed between two of a process with
// one. Within a round, which is one pass of the io thread over all that is ready, a process has `kTurn`. Then its
// messages wait for each other: one is executed at a time, and what other processes sent meanwhile comes first. The
// thread is never idle while a message waits.
//
// Thread: io only. Internal to net.

#include "base/clock.hpp"
#include "net/limits/fair_share.hpp"

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>

namespace gradsync::net {

class ProcessTurns : public std::enable_shared_from_this<ProcessTurns> {
 public:
  using Process = FairShare::Process;
  using Ticket = std::uint64_t;

  static constexpr std::chrono::microseconds kTurn{500};

  /// `post` has a function called behind all that is ready now. It may be called when this is gone.
  explicit ProcessTurns(std::function<void(std::function<void()>)> post);

  /// Whether a message of the process may be executed at once; else call `wait`.
  [[nodiscard]] bool free(const Process& process) const;

  /// `wake` is called when the turn of this message has come, and returns false where nobody waits any more. Call `end`
  /// after the message, or where it is not executed.
  [[nodiscard]] Ticket wait(const Process& process, std::function<bool()> wake);
  void end(const Process& process, Ticket ticket);

  /// Notes what a message of the process has cost.
  void used(const Process& process, Duration computed);

  /// Processes with an account; rounds of little work do not end, and keep theirs.
  [[nodiscard]] std::size_t processes() const { return accounts_.size(); }

 private:
  struct Waiting {
    Ticket ticket = 0;
    std::function<bool()> wake;
  };

  struct Account {
    Duration used{};  ///< in this round
    std::deque<Waiting> waiting;
    bool waking = false;  ///< the next is about to be woken
    Ticket woken = 0;     ///< it has not ended; 0: none

    [[nodiscard]] bool idle() const { return waiting.empty() && !waking && woken == 0; }
  };

  void post(std::function<void(ProcessTurns&)> later);
  void wake_soon(const Process& process, Account& account);
  void wake_next(const Process& process);
  void end_round();

  std::function<void(std::function<void()>)> post_;
  std::map<Process, Account> accounts_;
  Ticket last_ticket_ = 0;
  bool round_ends_ = false;  ///< the end of the round is posted
};

}  // namespace gradsync::net
