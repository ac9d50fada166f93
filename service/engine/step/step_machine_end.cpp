// The end of an attempt: the lane's reports, failures and deadlines.

#include "base/assert.hpp"
#include "base/text.hpp"
#include "engine/step/step_machine.hpp"

#include <fmt/format.h>

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
  actions.emplace_back(LaunchFinish{
      launch_on(lanes_.front()),
      ask.scale,
      ask.scaled,
      ask.kind == Ask::Kind::NormOnly,
      ask.override_max_norm,
      ask.max_norm});
}

void StepMachine::count_report(device::LaneId lane) {
  const auto work = std::find_if(lanes_.begin(), lanes_.end(), [&](const LaneWork& each) { return each.lane == lane; });
  GRADSYNC_ASSERT(
      work != lanes_.end() && work->outstanding > 0, "a lane reports once on each command that it was given"
  );
  --work->outstanding;
}

void StepMachine::on_reduced(device::LaneId lane, std::uint64_t tag) {
  if (tag == attempt_) {
    count_report(lane);
    ++course_.reduced;
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
  end_measured(std::move(math), actions);
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
  course_.phase = Phase::Scaling;
  for (LaneWork& work : lanes_) {
    actions.emplace_back(LaunchOutcomes{launch_on(work), work.buckets, math.groups});
  }
  norm_.math = std::move(math);
  return actions;
}

void StepMachine::end_measured(device::StepMath math, Actions& actions) {
  GRADSYNC_ASSERT(course_.reduced == plan_->buckets.size(), "the lane refuses a norm of buckets that are not reduced");
  if (ranks_.front().ask->kind == Ask::Kind::NormOnly) {
    course_.phase = Phase::NormGiven;
    norm_.math = math;
    norm_.step = ranks_.front().ask->step;
    forget_asks();
    MicroBatches said = micro_batches(math.nonfinite);
    actions.emplace_back(NormKnown{std::move(math), std::move(said)});
    return;
  }
  multiplied_in_a_row_ = multiplies_all(math) ? multiplied_in_a_row_ + 1 : 0;
  MicroBatches said = micro_batches(math.nonfinite);
  actions.emplace_back(Committed{attempt_, std::move(math), std::move(said)});
  end_attempt();
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
  norm_.math.clip_s = shared() ? std::max(norm_.math.clip_s, clip_s) : clip_s;
  if (busy()) {
    return actions;  // another lane still multiplies
  }
  multiplied_in_a_row_ = 0;
  MicroBatches said = micro_batches(norm_.math.nonfinite);
  actions.emplace_back(Committed{attempt_, std::move(norm_.math), std::move(said)});
  end_attempt();
  return actions;
}

Actions StepMachine::on_lane_failed(device::LaneId lane, const device::Failed& report) {
  if (report.tag != attempt_) {
    return {};
  }
  count_report(lane);
  if (course_.error) {
    Actions actions;
    settle_failure(actions);
    return actions;
  }
  return fail(lane_error(report));
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

Actions StepMachine::fail(Error error) {
  Actions actions;
  if (course_.error) {
    return actions;
  }
  course_.error = std::move(error);
  for (LaneWork& work : lanes_) {
    if (work.outstanding > 0) {
      actions.emplace_back(LaunchAbort{launch_on(work), attempt_});
    }
  }
  settle_failure(actions);
  return actions;
}

void StepMachine::settle_failure(Actions& actions) {
  if (!course_.error || busy()) {
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

void StepMachine::end_attempt() {
  ++attempt_;
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

std::vector<std::int64_t> StepMachine::missing_ranks() const {
  std::vector<std::int64_t> missing;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!ranks_[rank].ask) {
      missing.push_back(static_cast<std::int64_t>(rank));
    }
  }
  return missing;
}

std::string StepMachine::waits_for() const {
  if (course_.error) {
    return "the lane to stop after: " + course_.error->message;
  }
  const std::vector<std::int64_t> missing = missing_ranks();
  if (missing.size() == ranks_.size()) {
    return course_.phase == Phase::NormGiven ? "clip.apply of every rank" : "the next step";
  }
  if (missing.empty()) {
    return "the lane: " + lane_work();
  }
  return fmt::format("rank{} {}", missing.size() > 1 ? "s" : "", fmt::join(missing, ", "));
}

std::string StepMachine::lane_work() const {
  if (plan_->options.data_path == plan::DataPath::Stats) {
    return "the tables of all ranks are filled, the norm is not known";
  }
  return fmt::format("{} of {} buckets reduced", course_.reduced, plan_->buckets.size());
}

std::optional<TimePoint> StepMachine::deadline() const {
  std::optional<TimePoint> earliest;
  if (course_.error || course_.suspended || !any_waiting()) {
    return earliest;
  }
  for (const Rank& rank : ranks_) {
    if (rank.ask && (!earliest || rank.ask->deadline < *earliest)) {
      earliest = rank.ask->deadline;
    }
  }
  return earliest;
}

std::optional<TimePoint> StepMachine::half_time() const {
  std::optional<TimePoint> earliest;
  if (course_.error || course_.suspended || course_.half_warned || !any_waiting() || all_waiting()) {
    return earliest;
  }
  for (const Rank& rank : ranks_) {
    if (rank.ask && (!earliest || rank.ask->half < *earliest)) {
      earliest = rank.ask->half;
    }
  }
  return earliest;
}

std::optional<TimePoint> StepMachine::next_deadline() const {
  const std::optional<TimePoint> due = deadline();
  const std::optional<TimePoint> half = half_time();
  return half && due ? std::min(*half, *due) : due;
}

void StepMachine::follow_pauses(TimePoint now, const Roster& roster) {
  const bool waits =
      !course_.error && any_waiting() && std::any_of(roster.begin(), roster.end(), [this](const auto& seat) {
        return seat.second.paused && !waiting(seat.first);
      });
  if (waits == course_.suspended.has_value()) {
    return;
  }
  for (Rank& rank : ranks_) {
    if (course_.suspended && rank.ask) {
      const Duration by = now - std::max(*course_.suspended, rank.ask->since);
      rank.ask->half += by;
      rank.ask->deadline += by;
    }
  }
  course_.suspended = waits ? std::optional(now) : std::nullopt;
}

std::vector<std::string> StepMachine::missing_tensors() const {
  std::vector<std::string> tensors;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].ask) {
      continue;
    }
    for (std::string& name : unready_tensors(static_cast<std::int64_t>(rank))) {
      if (tensors.size() > kNamedTensors) {
        return tensors;
      }
      if (std::find(tensors.begin(), tensors.end(), name) == tensors.end()) {
        tensors.push_back(std::move(name));
      }
    }
  }
  return tensors;
}

Actions StepMachine::on_time(TimePoint now, const std::string& forming) {
  Actions actions;
  if (const std::optional<TimePoint> half = half_time(); half && *half <= now) {
    course_.half_warned = true;
    actions.emplace_back(HalfTime{waits_for()});
  }
  if (const std::optional<TimePoint> due = deadline(); due && *due <= now) {
    Actions failing = fail(timeout(now, forming));
    std::move(failing.begin(), failing.end(), std::back_inserter(actions));
  }
  return actions;
}

Error StepMachine::timeout(TimePoint now, const std::string& forming) const {
  const auto waiting_longest = std::min_element(ranks_.begin(), ranks_.end(), [](const Rank& a, const Rank& b) {
    return a.ask && (!b.ask || a.ask->since < b.ask->since);
  });
  const double waited_s = seconds(now - waiting_longest->ask->since);
  const std::vector<std::int64_t> missing = missing_ranks();
  std::vector<std::string> tensors = missing_tensors();
  std::string what;
  if (missing.empty()) {
    what = fmt::format("the lane did not finish within {:.1f} s: {}", waited_s, lane_work());
  } else if (!forming.empty()) {
    what = fmt::format("waited {:.1f} s, but the epoch is not complete: {}", waited_s, forming);
  } else {
    what = fmt::format(
        "waited {:.1f} s for rank{} {}; not ready there: {}",
        waited_s,
        missing.size() > 1 ? "s" : "",
        fmt::join(missing, ", "),
        tensors.empty() ? "nothing (the finish call itself is missing)" : enumerate_names(tensors, kNamedTensors)
    );
  }
  Error error = make_error(
      ErrorCode::StepTimeout,
      std::move(what),
      "look at what these ranks do (py-spy, gradsyncd status); raise the timeout when the step is just long"
  );
  error.ranks = missing;
  tensors.resize(std::min(tensors.size(), kNamedTensors));
  error.tensors = std::move(tensors);
  error.step = waiting_longest->ask->step;
  error.waited_s = waited_s;
  return error;
}

}  // namespace gradsync::engine
