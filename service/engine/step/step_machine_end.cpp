// The end of an attempt: the lane's reports and the verdict.

#include "base/assert.hpp"
#include "engine/step/step_machine.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace gradsync::engine {

namespace {

bool multiplies_all(const device::StepMath& math) {
  return std::all_of(math.groups.begin(), math.groups.end(), [](const plan::ClipOutcome& outcome) {
    return outcome.multiply && outcome.multiplier != 1;
  });
}

}  // namespace

bool StepMachine::busy() const {
  return std::any_of(lanes_.begin(), lanes_.end(), [](const LaneWork& work) { return work.outstanding > 0; });
}

device::LaneId StepMachine::launch_on(LaneWork& work) {
  ++work.outstanding;
  return work.lane;
}

void StepMachine::launch_norm(const Ask& ask, Actions& actions) {
  if (shared()) {
    for (LaneWork& work : lanes_) {
      actions.emplace_back(LaunchMeasure{launch_on(work), work.buckets});
    }
    return;
  }
  for (LaneWork& work : lanes_) {
    actions.emplace_back(LaunchFinish{
        launch_on(work), ask.scale, ask.scaled, ask.kind == Ask::Kind::NormOnly, ask.override_max_norm, ask.max_norm});
  }
}

void StepMachine::launch_scale(const Ask& ask, Actions& actions) {
  course_.phase = Phase::Scaling;
  for (LaneWork& work : lanes_) {
    LaunchScale launch{launch_on(work), ask.override_max_norm, ask.max_norm, ask.abandon, work.buckets};
    if (travels()) {
      launch.absent = norm_.math.absent;
    }
    actions.emplace_back(std::move(launch));
  }
}

void StepMachine::launch_outcomes(device::StepMath&& math, Actions& actions) {
  course_.phase = Phase::Scaling;
  for (LaneWork& work : lanes_) {
    LaunchOutcomes launch{launch_on(work), work.buckets, math.groups};
    if (travels()) {
      launch.absent = math.absent;
    }
    actions.emplace_back(std::move(launch));
  }
  norm_.math = std::move(math);
}

void StepMachine::agree(Actions& actions) {
  if (locals_.alone()) {
    go_on({}, actions);
    return;
  }
  course_.phase = Phase::Asking;
  AskPeers asking{*ranks_.front().ask};
  asking.terms.deadline = first_deadline();
  actions.emplace_back(std::move(asking));
}

/// `math`: of a norm.
void StepMachine::go_on(device::StepMath&& math, Actions& actions) {
  const Ask& ask = *ranks_.front().ask;
  course_.overdue = false;
  switch (ask.kind) {
    case Ask::Kind::Finish:
      if (travels()) {
        launch_outcomes(std::move(math), actions);
        break;
      }
      [[fallthrough]];
    case Ask::Kind::NormOnly:
      end_measured(std::move(math), actions);
      break;
    case Ask::Kind::Clip:
      launch_scale(ask, actions);
      break;
    case Ask::Kind::Import:
      course_.phase = Phase::Voting;
      actions.emplace_back(PrepareImport{attempt_});
      break;
  }
}

Actions StepMachine::on_agreed(device::StepMath math) {
  GRADSYNC_ASSERT(asking(), "nodes agree on what they were asked");
  Actions actions;
  go_on(std::move(math), actions);
  return actions;
}

Actions StepMachine::on_rows_wanted(std::vector<device::ReadRows> wanted) {
  Actions actions;
  if (!asking()) {
    return actions;
  }
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    if (!wanted[lane].classes.empty() || !wanted[lane].boxes.empty()) {
      actions.emplace_back(LaunchRead{launch_on(lanes_[lane]), std::move(wanted[lane])});
    }
  }
  return actions;
}

bool StepMachine::on_rows_read(device::LaneId lane, std::uint64_t tag) {
  if (tag != attempt_) {
    return false;
  }
  count_report(lane);
  return asking();
}

StepMachine::LaneWork& StepMachine::count_report(device::LaneId lane) {
  const auto work = std::find_if(lanes_.begin(), lanes_.end(), [&](const LaneWork& each) { return each.lane == lane; });
  GRADSYNC_ASSERT(
      work != lanes_.end() && work->outstanding > 0, "a lane reports once on each command that it was given"
  );
  --work->outstanding;
  return *work;
}

std::size_t StepMachine::reduced() const {
  std::size_t least = plan_->buckets.size();
  std::size_t all = 0;
  for (const LaneWork& work : lanes_) {
    least = std::min(least, work.reduced);
    all += work.reduced;
  }
  return is_sites() ? least : all;
}

void StepMachine::on_reduced(device::LaneId lane, std::uint64_t tag) {
  if (tag == attempt_) {
    ++count_report(lane).reduced;
  }
}

Actions StepMachine::on_finished(device::LaneId lane, std::uint64_t tag, device::StepMath math) {
  Actions actions;
  if (tag != attempt_) {
    return actions;
  }
  count_report(lane);
  if (course_.error) {
    return actions;  // the Abort's report settles it
  }
  if (++course_.finished < lanes_.size()) {
    return actions;
  }
  if (locals_.alone()) {
    end_measured(std::move(math), actions);
  } else {
    agree(actions);
  }
  return actions;
}

Actions StepMachine::on_measured(device::LaneId lane, device::Measured report) {
  Actions actions;
  if (report.tag != attempt_) {
    return actions;
  }
  count_report(lane);
  if (course_.error) {
    return actions;  // the Aborts' reports settle it
  }
  course_.measured.push_back(std::move(report));
  if (course_.measured.size() == lanes_.size()) {
    const Ask& ask = *ranks_.front().ask;
    actions.emplace_back(Decide{
        std::exchange(course_.measured, {}), ask.scale, ask.scaled, ask.override_max_norm, ask.max_norm});
  }
  return actions;
}

Actions StepMachine::on_decided(device::StepMath math) {
  Actions actions;
  const auto changes = [](const plan::ClipOutcome& outcome) {
    return outcome.action == plan::StepAction::Zero || (outcome.multiply && outcome.multiplier != 1);
  };
  const auto holds_back = [](const plan::ClipOutcome& outcome) {
    return outcome.action == plan::StepAction::Skip || outcome.action == plan::StepAction::Raise;
  };
  if (ranks_.front().ask->kind == Ask::Kind::NormOnly || std::ranges::none_of(math.groups, changes) ||
      std::ranges::any_of(math.groups, holds_back)) {
    end_measured(std::move(math), actions);
    return actions;
  }
  launch_outcomes(std::move(math), actions);
  return actions;
}

void StepMachine::end_measured(device::StepMath&& math, Actions& actions) {
  GRADSYNC_ASSERT(reduced() == plan_->buckets.size(), "the lane refuses a norm of buckets that are not reduced");
  if (ranks_.front().ask->kind == Ask::Kind::NormOnly) {
    course_.phase = Phase::NormGiven;
    norm_.math = math;
    norm_.step = ranks_.front().ask->step;
    forget_asks();
    MicroBatches said = micro_batches(math.nonfinite);
    actions.emplace_back(NormKnown{std::move(math), std::move(said)});
    return;
  }
  course_.multiplied = multiplies_all(math);
  prepare(std::move(math), actions);
}

void StepMachine::prepare(device::StepMath&& math, Actions& actions) {
  course_.phase = Phase::Voting;
  MicroBatches said = micro_batches(math.nonfinite);
  actions.emplace_back(Prepare{attempt_, std::move(math), std::move(said)});
}

Actions StepMachine::on_scaled(device::LaneId lane, std::uint64_t tag, double clip_s) {
  Actions actions;
  if (tag != attempt_) {
    return actions;
  }
  count_report(lane);
  if (course_.error) {
    return actions;
  }
  norm_.math.clip_s = lanes_.size() > 1 ? std::max(norm_.math.clip_s, clip_s) : clip_s;
  if (busy()) {
    return actions;  // another lane still multiplies
  }
  prepare(std::move(norm_.math), actions);
  return actions;
}

Actions StepMachine::on_verdict(std::optional<Error> failure) {
  GRADSYNC_ASSERT(course_.phase == Phase::Voting, "a verdict is on an attempt that was prepared");
  Actions actions;
  if (failure) {
    course_.error = std::move(failure);
    course_.known = true;
    settle_failure(actions);
    return actions;
  }
  std::optional<Error> later = std::move(course_.later);
  if (importing()) {
    actions.emplace_back(Imported{attempt_});
  } else {
    multiplied_in_a_row_ = course_.multiplied ? multiplied_in_a_row_ + 1 : 0;
    actions.emplace_back(Committed{attempt_});
  }
  end_attempt();
  if (later) {
    Actions failing = fail(std::move(*later));
    std::move(failing.begin(), failing.end(), std::back_inserter(actions));
  }
  return actions;
}

void StepMachine::end_attempt() {
  if (open_ || locals_.alone()) {  // before that, the other nodes know of no attempt
    ++attempt_;
  }
  for (LaneWork& work : lanes_) {
    work.outstanding = 0;  // a read of rows may be under way; its report is of another attempt by then
    work.reduced = 0;
  }
  course_ = Course{};
  forget_asks();
  for (std::vector<device::UnusedTensor>& unused : unused_) {
    unused.clear();
  }
  for (Rank& rank : ranks_) {
    rank.ready.assign(rank.ready.size(), false);
    for (const std::uint32_t row : rank.unused) {
      rank.is_unused[row] = false;
    }
    rank.unused.clear();
    rank.notified.clear();
    rank.micro_batch.reset();
    rank.notification_error.reset();
  }
}

void StepMachine::ask(Rank& rank, const Ask& ask) {
  asked_ += rank.ask ? 0 : 1;
  rank.ask = ask;
}

void StepMachine::forget_asks() {
  for (Rank& rank : ranks_) {
    rank.ask.reset();
  }
  asked_ = 0;
}

bool StepMachine::begun() const {
  return course_.phase != Phase::Collecting || any_waiting() ||
         std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
           return std::find(rank.ready.begin(), rank.ready.end(), true) != rank.ready.end();
         });
}

}  // namespace gradsync::engine
