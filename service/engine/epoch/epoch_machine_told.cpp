// What other nodes say of the epoch that forms, or stands. Where the job has one node, AlonePeers says it at once.

#include "engine/epoch/epoch_machine.hpp"

#include <fmt/format.h>

#include <optional>
#include <utility>

namespace gradsync::engine {

EpochActions EpochMachine::on_prepare(std::uint64_t epoch) {
  EpochActions actions;
  if (state_ == State::Gathering) {
    make_plan(epoch, actions);
  } else if (state_ == State::Ending && told_) {
    prepared_ = epoch;  // other nodes are quiet already
  }
  return actions;
}

void EpochMachine::make_plan(std::uint64_t epoch, EpochActions& actions) {
  if (epoch > epoch_) {
    epoch_ = epoch;
    if (digest_) {  // what survivors have sent is of the number that they were told
      Error error = make_error(
          ErrorCode::StaleEpoch, fmt::format("the other nodes of job '{}' go on with epoch {}", job_, epoch)
      );
      error.job = job_;
      actions.emplace_back(FailStepCalls{error});
      actions.emplace_back(FormEpoch{error.message});
    }
  }
  state_ = State::Planning;
  plan_ticket_ = next_ticket_++;
  actions.emplace_back(MakePlan{plan_ticket_});
}

EpochActions EpochMachine::on_ended(TimePoint now, const Error& error) {
  EpochActions actions;
  prepared_.reset();
  if (told_ && state_ == State::Committed) {
    fail_attempt(error, actions);
  } else if (told_ && !ending_) {
    not_begun_ = error.message;
    cancel(actions);
    try_form(actions);
  }
  follow_pauses(now);
  return actions;
}

EpochActions EpochMachine::on_declared_elsewhere(TimePoint now, const Error& error) {
  EpochActions actions;
  prepared_.reset();
  told_ = false;
  redeclare_ = true;
  if (state_ == State::Committed) {
    fail_attempt(error, actions);
  } else if (!ending_) {
    cancel(actions);
    try_form(actions);
  }
  follow_pauses(now);
  return actions;
}

EpochActions EpochMachine::on_refused(TimePoint now, const Error& error) {
  EpochActions actions;
  prepared_.reset();
  told_ = false;
  if (state_ == State::Committed) {
    redeclare_ = true;
    fail_attempt(error, actions);
  } else {
    tell_waiting(error, actions);
  }
  follow_pauses(now);
  return actions;
}

EpochActions EpochMachine::on_begin() {
  EpochActions actions;
  if (state_ != State::Joining) {
    return actions;
  }
  const bool keeps = keeps_steps();
  state_ = State::Committed;
  digest_ = std::exchange(loading_, {});
  redeclare_ = false;
  not_begun_.clear();
  steps_ = 0;
  actions.emplace_back(CommitPlan{keeps});
  for (auto& [rank, seat] : roster_) {
    seat.declaration.fresh = false;
    seat.declaration.committed = true;
    if (std::exchange(seat.call, std::nullopt)) {
      actions.emplace_back(AnswerDeclare{rank, std::nullopt});
    }
  }
  actions.emplace_back(OpenSteps{});
  return actions;
}

}  // namespace gradsync::engine
