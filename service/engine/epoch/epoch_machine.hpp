#pragma once
// How the epochs of one job form and end, as a sans-I/O machine: events in, actions out; no clock, lane or reply. It is
// told of the ranks of this node.
//
// An epoch is one agreed membership with one plan. It forms when every rank declared what it holds, and ends when a
// rank is lost or a rank declares anew. After a loss the survivors' declarations carry over, so that only the new
// process has to declare; after a new declaration of a live rank everybody has to.
//
//   Forming ──all of this node declared──▶ Gathering ──all nodes──▶ Planning ──made──▶ Loading ──loaded──▶ Joining
//      ▲  ◀──────── refused or overtaken ──────┘◀──────────────────────┘◀──────────────────┘◀─────────────────┤
//      │                                                                                        all nodes have│
//      └───────── the attempt in flight has failed ── Ending ◀── lost, declared anew ── Committed ◀── loaded ─┘
//
// What other nodes do comes through the `Peers` port (engine/peers/peers.hpp). A node that is alone passes through
// Gathering and Joining without stopping there.
//
// Invariants: a declare call is answered once; a plan is committed only when all declarations in it still stand; an
// epoch ends by failing the attempt in flight, and the new number counts from the moment the lane is quiet, because
// only then may trainers write gradients again. The other nodes believe that all ranks here have declared exactly while
// `told_` is set, and hear of every end that begins here.

#include "engine/epoch/epoch_action.hpp"
#include "engine/epoch/roster.hpp"
#include "engine/types.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gradsync::engine {

/// The result of planning: a plan, or why there is none.
struct PlanMade {
  std::string digest;
  std::optional<Error> refusal;
  std::optional<std::int64_t> refused_for;  ///< the rank that has a buffer that does not fit
};

class EpochMachine {
 public:
  enum class State : std::uint8_t { Forming, Gathering, Planning, Loading, Joining, Committed, Ending };
  enum class Leaving : std::uint8_t { ByChoice, Lost };

  /// A rank that died before its epoch began has this long to be attached anew, while others wait for it.
  static constexpr Milliseconds kSuccessor{10'000};

  struct Joining {
    std::int64_t pid = 0;
    bool resumes = false;  ///< the client of before, on a new connection
  };

  struct Declaring {
    Milliseconds timeout{0};
    bool compares_weights = false;
  };

  /// Takes its tickets from `next_ticket`, so that they are unique among all machines that share it.
  EpochMachine(
      std::string job,
      Roster nobody,
      std::uint64_t first_epoch,
      EngineDeadlines deadlines,
      std::uint64_t& next_ticket,
      std::string node = {}
  );

  // events
  void on_joined(std::int64_t rank, const Joining& joining);
  [[nodiscard]] EpochActions on_left(TimePoint now, std::int64_t rank, const std::string& why, Leaving how);
  void on_disconnected(TimePoint now, std::int64_t rank);
  void on_paused(TimePoint now, std::int64_t rank, bool paused);
  /// A declare call of a rank. `Superseded` answers the one that it takes the place of.
  [[nodiscard]] EpochActions on_called_again(std::int64_t rank);
  [[nodiscard]] EpochActions on_declared(TimePoint now, std::int64_t rank, const Declaring& declaring);
  [[nodiscard]] EpochActions on_checked(TimePoint now, std::int64_t rank, const std::optional<Error>& refusal);
  /// A declaration of the rank was refused before it could be checked. Its earlier declaration stands.
  [[nodiscard]] EpochActions on_refused_unchecked(TimePoint now, std::int64_t rank, const Error& refusal);
  /// The rank goes on with steps: the refusal of its later declaration no longer matters.
  void on_step_called(std::int64_t rank);
  /// A step call of the rank waits. Where the epoch does not form, for a reason that the rank has not heard, it is
  /// told.
  [[nodiscard]] EpochActions on_step_waits(std::int64_t rank) const;
  /// A step call of the rank is answered with the error.
  void on_told(std::int64_t rank, const Error& error);
  [[nodiscard]] EpochActions on_planned(TimePoint now, const PlanMade& made);
  [[nodiscard]] EpochActions on_lane_loaded();
  /// No lane has the plan, or one that had it does not any more.
  [[nodiscard]] EpochActions on_load_failed(const Error& error);

  void on_step_done() { ++steps_; }

  // other nodes
  /// All ranks of all nodes have declared: the epoch has this number, or its own where that is not lower.
  [[nodiscard]] EpochActions on_prepare(std::uint64_t epoch);
  /// Every node has loaded the plan.
  [[nodiscard]] EpochActions on_begin();
  /// The epoch ended, or does not form, because of another node. What ranks of this node declared counts on.
  [[nodiscard]] EpochActions on_ended(TimePoint now, const Error& error);
  /// A rank of another node declared anew, as `on_declared` has it for one of this node: every rank has to. Nothing
  /// that other nodes were told of this one counts any more.
  [[nodiscard]] EpochActions on_declared_elsewhere(TimePoint now, const Error& error);
  /// It ended, or does not form, for a reason that ranks have to hear: they declare again.
  [[nodiscard]] EpochActions on_refused(TimePoint now, const Error& error);

  /// Nothing of the attempt that an end of the epoch failed is on the lane any more.
  [[nodiscard]] EpochActions on_attempt_failed(TimePoint now);
  /// No rank may be attached any more: declarations that wait are refused.
  [[nodiscard]] EpochActions on_drain(const Error& error);
  /// A restart takes over: all ranks leave.
  [[nodiscard]] EpochActions on_superseded(const Error& error);
  /// Nothing forms any more.
  [[nodiscard]] EpochActions on_halt();
  [[nodiscard]] EpochActions on_time(TimePoint now);

  // what it knows
  [[nodiscard]] std::optional<TimePoint> next_deadline() const;

  [[nodiscard]] State state() const { return state_; }

  /// A lane has the plan, or is about to have it, and the epoch has not begun.
  [[nodiscard]] bool loads() const { return state_ == State::Loading || state_ == State::Joining; }

  [[nodiscard]] const Seat& seat(std::int64_t rank) const { return roster_[rank]; }

  [[nodiscard]] const Roster& roster() const { return roster_; }

  [[nodiscard]] std::uint64_t epoch() const { return epoch_; }

  /// The epoch that a process which comes now belongs to.
  [[nodiscard]] std::uint64_t coming_epoch() const { return ending_ ? epoch_ + 1 : epoch_; }

  /// The number that ranks were told of the coming epoch; 0: they have been in none.
  [[nodiscard]] std::uint64_t promised_epoch() const { return digest_ ? coming_epoch() : 0; }

  /// Steps done in this epoch.
  [[nodiscard]] std::int64_t steps() const { return steps_; }

  /// Why the epoch ends, while the attempt in flight still fails.
  [[nodiscard]] const std::optional<Error>& ending() const { return ending_; }

  /// Why the last epoch that formed while ranks waited did not begin, in the words of another node; empty: none formed.
  [[nodiscard]] const std::string& not_begun() const { return not_begun_; }

  [[nodiscard]] bool halted() const { return halted_; }

  /// The rank that has a declaration in the check with this ticket.
  [[nodiscard]] std::optional<std::int64_t> rank_checked(std::uint64_t ticket) const;

  [[nodiscard]] bool plans(std::uint64_t ticket) const { return state_ == State::Planning && plan_ticket_ == ticket; }

  /// The answer to the rank's declaration may be lost: the same call again need not make everybody declare.
  [[nodiscard]] bool may_repeat(std::int64_t rank) const;
  /// Why a step call of an epoch is refused; nothing where only its attempt decides, which is `attempt` now.
  [[nodiscard]] std::optional<Error> refuse_step(std::int64_t rank, const StepKey& key, std::uint64_t attempt) const;
  /// Says in words what the epoch lacks.
  [[nodiscard]] std::string lacks() const;

 private:
  [[nodiscard]] bool lacks_declaration(const Seat& seat) const;

  /// What declare calls wait for: the lowest ranks, and in words.
  struct Lacking {
    std::vector<std::int64_t> ranks;
    std::string words;
  };

  [[nodiscard]] Lacking lacking() const;
  [[nodiscard]] bool all_declared() const;  ///< none lacks a declaration
  [[nodiscard]] std::optional<Error> refusal_besides(std::int64_t rank) const;
  [[nodiscard]] static std::optional<TimePoint> successor_deadline(
      const Seat& seat, const std::optional<TimePoint>& first_call
  );
  static void drop_declaration(Seat& seat);
  bool cancel(EpochActions& actions);  ///< whether an epoch was forming
  void leave_others(const Error& error, EpochActions& actions);
  void take_back(EpochActions& actions);
  void refuse(std::int64_t rank, const Error& error, EpochActions& actions);
  void refuse_fresh(const Error& error, EpochActions& actions);
  [[nodiscard]] Error told_to_others(std::int64_t rank, const Error& refusal) const;
  void tell_waiting(const Error& told, EpochActions& actions);
  void forget_unheard(std::int64_t rank);
  void end_epoch(Error error, EpochActions& actions);
  void fail_attempt(Error error, EpochActions& actions);
  void try_form(EpochActions& actions);
  void make_plan(std::uint64_t epoch, EpochActions& actions);

  /// The plan is the one before: what survivors have sent for the new epoch counts.
  [[nodiscard]] bool keeps_steps() const { return digest_ == loading_ && !redeclare_; }

  void time_out(TimePoint now, std::int64_t rank, const Lacking& lacking, EpochActions& actions);
  void follow_pauses(TimePoint now);

  const std::string job_;
  const std::string node_;  ///< where ranks that are lost were; empty where the job has one node
  const EngineDeadlines deadlines_;
  std::uint64_t& next_ticket_;
  Roster roster_;
  State state_ = State::Forming;
  std::uint64_t epoch_;
  bool told_ = false;                      ///< other nodes count on what all ranks of this one have declared
  std::optional<std::uint64_t> prepared_;  ///< Ending: all nodes have declared for the epoch after it
  std::uint64_t plan_ticket_ = 0;          ///< Planning
  std::string loading_;                    ///< Loading: the digest of the plan
  std::optional<std::string> digest_;      ///< the digest of the plan committed last
  bool redeclare_ = false;                 ///< every rank has to declare before the next commit
  std::optional<Error> ending_;            ///< Ending: why
  std::optional<Error> ended_;             ///< why the epoch before this one ended
  std::string not_begun_;                  ///< `not_begun()`
  std::optional<TimePoint> suspended_;     ///< since when declare deadlines stand still, for a paused rank
  std::int64_t steps_ = 0;
  bool halted_ = false;
};

}  // namespace gradsync::engine
