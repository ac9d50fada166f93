// The way in which an epoch forms: declarations, their checks, the plan, and the lane that loads it.

#include "engine/epoch/epoch_machine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace gradsync::engine {

bool EpochMachine::lacks_declaration(const Seat& seat) const {
  return !seat.declaration.valid || (redeclare_ && !seat.declaration.fresh);
}

EpochMachine::Lacking EpochMachine::lacking() const {
  constexpr std::size_t kMost = 64;
  Lacking lacking{{}, lacks()};
  if (!roster_.alone()) {  // ranks that have not come yet have no numbers
    for (const auto& [rank, seat] : roster_) {
      if (lacks_declaration(seat) && lacking.ranks.size() < kMost) {
        lacking.ranks.push_back(rank);
      }
    }
    return lacking;
  }
  for (std::int64_t rank = 0; rank < roster_.size() && lacking.ranks.size() < kMost; ++rank) {
    if (lacks_declaration(seat(rank))) {
      lacking.ranks.push_back(rank);
    }
  }
  return lacking;
}

bool EpochMachine::all_declared() const {
  return roster_.count() == roster_.size() && std::none_of(roster_.begin(), roster_.end(), [this](const auto& seat) {
           return lacks_declaration(seat.second);
         });
}

void EpochMachine::drop_declaration(Seat& seat) {
  seat.declaration = SeatDeclaration{};
  seat.resumed = false;
}

bool EpochMachine::cancel(EpochActions& actions) {
  if (loads()) {
    actions.emplace_back(UnloadPlan{});
  }
  const bool formed = state_ >= State::Gathering && state_ <= State::Joining;
  state_ = formed ? State::Forming : state_;
  return formed;
}

/// What they were told of declarations counts no more.
void EpochMachine::leave_others(const Error& error, EpochActions& actions) {
  prepared_.reset();
  if (std::exchange(told_, false)) {
    actions.emplace_back(TellLeft{error});
  }
}

/// The same where a rank declares anew, which is no error to anybody.
void EpochMachine::take_back(EpochActions& actions) {
  prepared_.reset();
  if (std::exchange(told_, false)) {
    actions.emplace_back(TellLocals{false});
  }
}

void EpochMachine::refuse(std::int64_t rank, const Error& error, EpochActions& actions) {
  drop_declaration(roster_[rank]);
  if (std::exchange(roster_[rank].call, std::nullopt)) {
    actions.emplace_back(AnswerDeclare{rank, error});
  }
}

/// The ranks that declared since the last commit have to do it again.
void EpochMachine::refuse_fresh(const Error& error, EpochActions& actions) {
  const bool formed = cancel(actions);
  for (auto& [rank, seat] : roster_) {
    if (seat.declaration.fresh) {
      refuse(rank, error, actions);
    }
  }
  if (formed) {
    leave_others(error, actions);
  }
}

/// A refusal of one rank's declaration, as the others hear of it.
Error EpochMachine::told_to_others(std::int64_t rank, const Error& refusal) const {
  Error told = refusal;
  told.message = fmt::format("the declaration of rank {} is refused: {}", rank, refusal.message);
  told.path.clear();  // the request of another rank has nothing there
  told.rank = rank;
  told.ranks = {rank};
  told.job = job_;
  return told;
}

/// Tells the ranks that wait for an epoch which does not form, in declare calls and, as survivors, in step calls: in
/// those that wait now, or in the next.
void EpochMachine::tell_waiting(const Error& told, EpochActions& actions) {
  refuse_fresh(told, actions);
  leave_others(told, actions);
  if (all_declared()) {  // survivors alone: none of them would declare again by itself
    redeclare_ = true;
  }
  if (!roster_.any_committed() || (state_ != State::Forming && state_ != State::Ending)) {
    return;
  }
  Error survivors = told;
  survivors.path.clear();  // the request of another rank has nothing there
  survivors.job = job_;
  for (auto& [rank, seat] : roster_) {
    if (seat.declaration.committed) {
      seat.unheard = survivors;
    }
  }
  if (state_ == State::Forming) {
    actions.emplace_back(FailStepCalls{std::move(survivors)});
  }
}

EpochActions EpochMachine::on_step_waits(std::int64_t rank) const {
  EpochActions actions;
  if (state_ == State::Forming && roster_[rank].unheard) {
    actions.emplace_back(FailStepCalls{*roster_[rank].unheard});
  }
  return actions;
}

void EpochMachine::on_told(std::int64_t rank, const Error& error) {
  std::optional<Error>& unheard = roster_[rank].unheard;
  if (unheard && unheard->message == error.message) {
    unheard.reset();
  }
}

/// What was refused may be mended, because the rank declares or attaches anew; not where another rank was refused.
void EpochMachine::forget_unheard(std::int64_t rank) {
  if (refusal_besides(rank)) {
    return;
  }
  for (auto& [other, seat] : roster_) {
    seat.unheard.reset();
  }
}

EpochActions EpochMachine::on_drain(const Error& error) {
  EpochActions actions;
  refuse_fresh(error, actions);
  return actions;
}

EpochActions EpochMachine::on_called_again(std::int64_t rank) {
  EpochActions actions;
  if (std::exchange(roster_[rank].call, std::nullopt)) {
    actions.emplace_back(AnswerDeclare{
        rank,
        make_error(
            ErrorCode::Superseded,
            fmt::format("rank {} called gradients.declare again while this call waited", rank),
            "the newer call is answered"
        )});
  }
  return actions;
}

EpochActions EpochMachine::on_declared(TimePoint now, std::int64_t rank, const Declaring& declaring) {
  EpochActions actions;
  Seat& seat = roster_[rank];
  cancel(actions);
  if (!roster_.first_call()) {
    not_begun_.clear();  // those who waited were told
  }
  const bool was_committed = seat.declaration.committed;
  const bool ends = was_committed && !ending_ && !redeclare_;
  redeclare_ = redeclare_ || was_committed;
  drop_declaration(seat);
  forget_unheard(rank);
  seat.refusal.reset();
  seat.declaration.fresh = true;
  seat.declaration.compares_weights = declaring.compares_weights;
  seat.declaration.ticket = next_ticket_++;
  seat.call = DeclareCall{now, deadline_after(now, declaring.timeout)};
  if (ends) {
    Error error = make_error(
        ErrorCode::StaleEpoch,
        fmt::format("rank {} declared its gradients anew", rank),
        "every rank has to call gradients.declare again"
    );
    error.rank = rank;
    end_epoch(std::move(error), actions);
  }
  take_back(actions);
  actions.emplace_back(CheckDeclaration{rank, seat.declaration.ticket});
  follow_pauses(now);
  return actions;
}

EpochActions EpochMachine::on_checked(TimePoint now, std::int64_t rank, const std::optional<Error>& refusal) {
  EpochActions actions;
  Seat& seat = roster_[rank];
  seat.declaration.ticket = 0;
  if (refusal) {
    refuse(rank, *refusal, actions);
    seat.refusal = told_to_others(rank, *refusal);
    tell_waiting(*seat.refusal, actions);
  } else if (const std::optional<Error> other = refusal_besides(rank)) {
    refuse(rank, *other, actions);
  } else {
    seat.declaration.valid = true;
    try_form(actions);
  }
  follow_pauses(now);
  return actions;
}

/// Returns the refusal of the first rank, besides this one, that is waited for.
std::optional<Error> EpochMachine::refusal_besides(std::int64_t rank) const {
  for (const auto& [other, seat] : roster_) {
    if (other != rank && lacks_declaration(seat) && seat.refusal) {
      return seat.refusal;
    }
  }
  return std::nullopt;
}

EpochActions EpochMachine::on_refused_unchecked(TimePoint now, std::int64_t rank, const Error& refusal) {
  EpochActions actions;
  Seat& seat = roster_[rank];
  if (seat.call) {
    return actions;  // an earlier declaration of it waits with the others
  }
  seat.refusal = told_to_others(rank, refusal);
  if (lacks_declaration(seat)) {
    tell_waiting(*seat.refusal, actions);
    follow_pauses(now);
  }
  return actions;
}

void EpochMachine::on_step_called(std::int64_t rank) { roster_[rank].refusal.reset(); }

void EpochMachine::try_form(EpochActions& actions) {
  if (state_ != State::Forming || halted_ || !all_declared()) {
    return;
  }
  state_ = State::Gathering;
  if (!std::exchange(told_, true)) {
    actions.emplace_back(TellLocals{true});
  } else if (const auto epoch = std::exchange(prepared_, std::nullopt)) {
    make_plan(*epoch, actions);
  }
}

EpochActions EpochMachine::on_planned(TimePoint now, const PlanMade& made) {
  EpochActions actions;
  state_ = State::Forming;
  if (made.refusal) {
    if (made.refused_for && roster_[*made.refused_for].declaration.committed) {
      drop_declaration(roster_[*made.refused_for]);  // a survivor that released what its declaration names
      end_epoch(*made.refusal, actions);             // the other survivors hear of it in their step calls
      refuse_fresh(*made.refusal, actions);
    } else {
      tell_waiting(*made.refusal, actions);
    }
    follow_pauses(now);
    return actions;
  }
  // Survivors may already work for the coming epoch, with the plan they know: they must not find themselves in another.
  if (digest_ && !redeclare_ && *digest_ != made.digest && roster_.any_committed()) {
    redeclare_ = true;
    end_epoch(
        make_error(
            ErrorCode::StaleEpoch,
            fmt::format("what the new process declared makes another plan of job '{}'", job_),
            "every rank has to call gradients.declare again"
        ),
        actions
    );
    follow_pauses(now);
    return actions;
  }
  state_ = State::Loading;
  loading_ = made.digest;
  actions.emplace_back(LoadPlan{});
  return actions;
}

EpochActions EpochMachine::on_load_failed(const Error& error) {
  EpochActions actions;
  if (loads()) {
    tell_waiting(error, actions);
  }
  return actions;
}

EpochActions EpochMachine::on_lane_loaded() {
  EpochActions actions;
  if (state_ == State::Loading) {
    state_ = State::Joining;
    actions.emplace_back(TellReady{keeps_steps()});
  }
  return actions;
}

void EpochMachine::time_out(TimePoint now, std::int64_t rank, const Lacking& lacking, EpochActions& actions) {
  const double waited_s = seconds(now - roster_[rank].call->since);
  Error error = make_error(
      ErrorCode::DeclareTimeout,
      fmt::format("not all ranks declared within {:.1f} s: {}", waited_s, lacking.words),
      "look why these ranks do not reach gradients.declare, or raise the timeout"
  );
  error.job = job_;
  error.waited_s = waited_s;
  error.ranks = lacking.ranks;
  cancel(actions);
  refuse(rank, error, actions);
  leave_others(error, actions);
}

}  // namespace gradsync::engine
