// The seats of the epoch machine, the end of an epoch, and the queries about it.

#include "engine/epoch/epoch_machine.hpp"

#include "base/text/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace gradsync::engine {

EpochMachine::EpochMachine(
    std::string job,
    Roster nobody,
    std::uint64_t first_epoch,
    EngineDeadlines deadlines,
    std::uint64_t& next_ticket,
    std::string node
)
    : job_(std::move(job)),
      node_(std::move(node)),
      deadlines_(deadlines),
      next_ticket_(next_ticket),
      roster_(std::move(nobody)),
      epoch_(first_epoch) {}

void EpochMachine::on_joined(std::int64_t rank, const Joining& joining) {
  Seat& seat = roster_[rank];
  seat.taken = true;
  seat.pid = joining.pid;
  seat.resumed = joining.resumes;
  seat.reconnect_until.reset();
  seat.loss.reset();
  if (roster_.absent() == 0) {  // a rank that was lost here has no seat any more: another one has it
    roster_.forget([](const Seat& other) { return !other.taken; });
  }
  if (!joining.resumes) {
    seat.joined_epoch = coming_epoch();
    forget_unheard(rank);
  }
}

EpochActions EpochMachine::on_left(TimePoint now, std::int64_t rank, const std::string& why, Leaving how) {
  EpochActions actions;
  if (!seat(rank).taken) {
    return actions;
  }
  actions.emplace_back(VacateSeat{rank});
  cancel(actions);
  // A rank that never took part in the epoch leaves nothing behind: calls that wait for its seat go on waiting.
  const Seat before = roster_.take(rank);
  Error error = make_error(
      ErrorCode::RankLost,
      fmt::format("rank {} of job '{}' {}", rank, job_, why),
      "the gradients of the step in flight are lost: start the rank again and compute the step anew on every rank"
  );
  error.rank = rank;
  error.node = node_;
  error.job = job_;
  error.ranks = {rank};
  if (how == Leaving::Lost) {
    actions.emplace_back(ReportLoss{rank, error});
    const bool waited_for = lacks_declaration(before) && roster_.any_calls();  // by ranks that declared anew
    if (!before.declaration.committed || waited_for) {
      roster_[rank].loss = Seat::Loss{now, error};
    }
  }
  if (before.declaration.committed) {
    // A rank that leaves by choice attaches anew with all the others, where weights are compared: each waits for what
    // the others declare then, and is not matched with what they declared before.
    redeclare_ = redeclare_ || (how == Leaving::ByChoice && roster_.compares_weights());
    end_epoch(error, actions);
  }
  leave_others(error, actions);
  if (!roster_.alone()) {
    actions.emplace_back(TellLocals{false});  // the rank may come on another node
  }
  follow_pauses(now);
  if (before.call) {
    actions.emplace_back(AnswerDeclare{rank, error});
  }
  return actions;
}

void EpochMachine::on_disconnected(TimePoint now, std::int64_t rank) {
  roster_[rank].reconnect_until = now + deadlines_.reconnect;
}

void EpochMachine::on_paused(TimePoint now, std::int64_t rank, bool paused) {
  roster_[rank].paused = paused;
  follow_pauses(now);
}

/// For a reason of this node.
void EpochMachine::end_epoch(Error error, EpochActions& actions) {
  if (!ending_) {
    leave_others(error, actions);
    fail_attempt(std::move(error), actions);
  }
}

// The attempt in flight fails first; the number rises in `on_attempt_failed`, when the lane is quiet.
void EpochMachine::fail_attempt(Error error, EpochActions& actions) {
  error.job = job_;
  error.epoch = epoch_ + 1;
  error.attempt = 0;
  state_ = State::Ending;
  ending_ = error;
  actions.emplace_back(FailAttempt{std::move(error)});
}

EpochActions EpochMachine::on_attempt_failed(TimePoint now) {
  EpochActions actions;
  if (!ending_) {
    return actions;
  }
  ended_ = std::exchange(ending_, std::nullopt);
  ++epoch_;
  state_ = State::Forming;
  // Weights that were compared before steps were taken are no longer those of the ranks that took them.
  redeclare_ = redeclare_ || (steps_ > 0 && roster_.compares_weights());
  actions.emplace_back(UnloadPlan{});
  actions.emplace_back(FormEpoch{ended_->message});
  if (told_ && !all_declared()) {
    take_back(actions);
  }
  try_form(actions);
  follow_pauses(now);
  return actions;
}

EpochActions EpochMachine::on_superseded(const Error& error) {
  EpochActions actions;
  cancel(actions);
  std::vector<std::int64_t> calling;
  for (const auto& [rank, seat] : std::exchange(roster_, Roster(roster_.world_size(), roster_.size()))) {
    if (seat.call) {
      calling.push_back(rank);
    }
    if (seat.taken) {
      actions.emplace_back(VacateSeat{rank});
    }
  }
  leave_others(error, actions);
  if (digest_) {
    state_ = State::Ending;
    ending_ = error;  // without an epoch: an older restart has nothing to go on with
    actions.emplace_back(FailAttempt{error});
  }
  for (const std::int64_t rank : calling) {
    actions.emplace_back(AnswerDeclare{rank, error});
  }
  return actions;
}

EpochActions EpochMachine::on_halt() {
  EpochActions actions;
  halted_ = true;
  cancel(actions);
  return actions;
}

EpochActions EpochMachine::on_time(TimePoint now) {
  EpochActions actions;
  std::optional<Lacking> waited_for;
  std::vector<std::int64_t> taken;
  for (const auto& [rank, seat] : roster_) {
    taken.push_back(rank);
  }
  for (const std::int64_t rank : taken) {
    const Seat& seat = this->seat(rank);
    if (seat.reconnect_until && *seat.reconnect_until <= now) {
      const std::string why = fmt::format(
          "lost its connection and process {} did not come back within {:.1f} s",
          seat.pid,
          seconds(deadlines_.reconnect)
      );
      EpochActions left = on_left(now, rank, why, Leaving::Lost);
      std::move(left.begin(), left.end(), std::back_inserter(actions));
    } else if (seat.call && !suspended_ && seat.call->deadline <= now) {
      if (!waited_for) {
        waited_for = lacking();  // once, because all ranks may have one deadline
      }
      time_out(now, rank, *waited_for, actions);
    }
  }
  const std::optional<TimePoint> first_call = roster_.first_call();
  for (const auto& [rank, seat] : roster_) {
    if (const auto due = successor_deadline(seat, first_call); due && *due <= now) {
      Error error = seat.loss->error;
      error.message +=
          fmt::format(" before the epoch began, and no process took its place within {:.1f} s", seconds(kSuccessor));
      error.hint = "look why the rank ended, start it again, and call gradients.declare on every rank";
      refuse_fresh(error, actions);  // all that wait are answered, whatever else was lost
      break;
    }
  }
  follow_pauses(now);
  return actions;
}

/// The deadline of declare calls that wait for a seat whose process died.
std::optional<TimePoint> EpochMachine::successor_deadline(
    const Seat& seat, const std::optional<TimePoint>& first_call
) {
  if (!seat.loss || !first_call) {
    return std::nullopt;
  }
  return std::max(seat.loss->at, *first_call) + kSuccessor;
}

std::optional<TimePoint> EpochMachine::next_deadline() const {
  std::optional<TimePoint> earliest;
  const auto lower = [&earliest](const std::optional<TimePoint>& other) {
    if (other && (!earliest || *other < *earliest)) {
      earliest = other;
    }
  };
  const std::optional<TimePoint> first_call = roster_.first_call();
  for (const auto& [rank, seat] : roster_) {
    lower(seat.reconnect_until);
    lower(successor_deadline(seat, first_call));
    if (seat.call && !suspended_) {
      lower(seat.call->deadline);
    }
  }
  return earliest;
}

// Called after everything that may change which rank waits for which. The time that a declare call waited for a paused
// rank does not count; a pause that no call waited for does not count twice, and neither do two pauses at once.
void EpochMachine::follow_pauses(TimePoint now) {
  const bool waits = roster_.any_calls() && std::any_of(roster_.begin(), roster_.end(), [this](const auto& each) {
                       const Seat& seat = each.second;
                       return seat.paused && !seat.call && lacks_declaration(seat);
                     });
  if (waits == suspended_.has_value()) {
    return;
  }
  for (auto& [rank, seat] : roster_) {
    if (suspended_ && seat.call) {
      seat.call->deadline += now - std::max(*suspended_, seat.call->since);
    }
  }
  suspended_ = waits ? std::optional(now) : std::nullopt;
}

std::optional<std::int64_t> EpochMachine::rank_checked(std::uint64_t ticket) const {
  for (const auto& [rank, seat] : roster_) {
    if (ticket != 0 && seat.declaration.ticket == ticket) {
      return rank;
    }
  }
  return std::nullopt;
}

bool EpochMachine::may_repeat(std::int64_t rank) const {
  const Seat& seat = roster_[rank];
  return state_ == State::Committed && seat.resumed && seat.declaration.committed;
}

std::optional<Error> EpochMachine::refuse_step(std::int64_t rank, const StepKey& key, std::uint64_t attempt) const {
  const SeatDeclaration& declaration = roster_[rank].declaration;
  if (!digest_ || !declaration.committed) {
    return make_error(
        ErrorCode::NotDeclared,
        fmt::format("rank {} has no committed declaration", rank),
        "call gradients.declare and wait for its answer"
    );
  }
  const bool must_declare = redeclare_ && !declaration.fresh;
  if (key.epoch == epoch_ && !must_declare) {
    return std::nullopt;
  }
  Error error;
  if (ended_ && key.epoch < epoch_) {
    error = *ended_;
  } else if (key.epoch != epoch_) {
    error = make_error(
        ErrorCode::StaleEpoch,
        fmt::format("the call belongs to epoch {}, the job is in epoch {}", key.epoch, epoch_),
        "continue with the epoch and attempt given here"
    );
  } else {
    error = make_error(
        ErrorCode::StaleEpoch, fmt::format("epoch {} has not begun: rank {} has not declared for it", epoch_, rank)
    );
  }
  if (must_declare) {
    error.hint = "every rank has to call gradients.declare again";
  }
  error.epoch = epoch_;
  error.attempt = attempt;
  return error;
}

std::string EpochMachine::lacks() const {
  if (ending_) {
    return "the lane stops the attempt of the epoch before";
  }
  std::vector<std::int64_t> undeclared;
  for (const auto& [rank, seat] : roster_) {
    if (seat.taken && lacks_declaration(seat)) {
      undeclared.push_back(rank);
    }
  }
  const bool all_here = roster_.absent() == 0;
  if (all_here && undeclared.empty()) {
    return state_ == State::Gathering ? "not all ranks of other nodes have declared"
           : state_ == State::Joining ? "other nodes load the plan"
                                      : "the plan is being loaded";
  }
  std::string text;
  if (!all_here) {
    text = roster_.absent_in_words() + " not attached";
  }
  if (!undeclared.empty()) {
    const auto count = static_cast<std::int64_t>(undeclared.size());
    undeclared.resize(std::min(undeclared.size(), kNamedRanks));
    text += (text.empty() ? "" : "; ") + enumerate_ranks(undeclared, count) + " not declared";
  }
  return text;
}

}  // namespace gradsync::engine
