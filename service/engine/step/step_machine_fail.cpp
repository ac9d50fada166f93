// How an attempt fails: by its lane, by other nodes, or because its time is over.

#include "engine/step/step_machine.hpp"

#include <fmt/format.h>

#include <utility>

namespace gradsync::engine {

Actions StepMachine::on_lane_failed(device::LaneId lane, const device::Failed& report, std::optional<Error> why) {
  if (report.tag != attempt_) {
    return {};
  }
  count_report(lane);
  if (course_.error) {
    Actions actions;
    settle_failure(actions);
    return actions;
  }
  return fail_here(why ? std::move(*why) : lane_error(report));
}

Error StepMachine::lane_error(const device::Failed& report) const {
  if (!report.row) {
    return make_error(
        ErrorCode::StepFailed,
        "the lane failed: " + report.message,
        report.hint.empty() ? "the gradients of this step are lost: compute them again" : report.hint
    );
  }
  const std::string& tensor = plan_->tensors[report.row->tensor].declaration.name;
  Error error = make_error(
      ErrorCode::StepFailed,
      fmt::format("the row that rank {} wrote for '{}' cannot be right: {}", report.row->rank, tensor, report.message),
      "the gradients are as they were: fill every row with the stamp of the attempt given here and finish again"
  );
  error.path = report.row->field;
  error.tensor = tensor;
  error.rank = report.row->rank;
  return error;
}

Actions StepMachine::on_aborted(device::LaneId lane, std::uint64_t tag) {
  Actions actions;
  if (tag != attempt_) {
    return actions;
  }
  count_report(lane);
  settle_failure(actions);
  return actions;
}

Actions StepMachine::fail(Error error) { return fail(std::move(error), true); }

// Before the epoch has begun, other nodes know of no attempt.
Actions StepMachine::fail_here(Error error) { return fail(std::move(error), locals_.alone() || !open_); }

Actions StepMachine::fail(Error error, bool known) {
  Actions actions;
  if (course_.error) {
    if (known && !course_.known) {
      course_.error = std::move(error);
      course_.known = true;
      settle_failure(actions);
    }
    return actions;
  }
  if (course_.phase == Phase::Voting) {
    if (known && !course_.later) {
      course_.later = std::move(error);
    }
    return actions;
  }
  course_.error = std::move(error);
  course_.known = known;
  for (LaneWork& work : lanes_) {
    if (work.outstanding > 0) {
      actions.emplace_back(LaunchAbort{launch_on(work), attempt_});
    }
  }
  settle_failure(actions);
  return actions;
}

void StepMachine::settle_failure(Actions& actions) {
  if (!course_.error) {
    return;
  }
  if (!course_.known) {
    if ((travels() || !busy()) && !std::exchange(course_.said, true)) {
      actions.emplace_back(TellFailed{*course_.error});
    }
    return;
  }
  if (busy()) {
    return;
  }
  Error error = std::move(*course_.error);
  const std::uint64_t failed = attempt_;
  const bool was_begun = begun();
  end_attempt();
  error.epoch = epoch_;
  error.attempt = attempt_;
  actions.emplace_back(AttemptFailed{failed, std::move(error), was_begun});
}

}  // namespace gradsync::engine
