// What the machine decides is done here.

#include "engine/job.hpp"
#include "engine/metrics.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <limits>

namespace gradsync::engine {

namespace {

constexpr std::int64_t kFirstCheckedSteps = 3;

/// Steps in a row whose finish multiplied every clip group, until the next is expected to do so as well.
constexpr std::int64_t kMultipliedBefore = 2;

bool multiplies_all(const device::StepMath& math) {
  return std::all_of(math.groups.begin(), math.groups.end(), [](const plan::ClipOutcome& outcome) {
    return outcome.multiply && outcome.multiplier != 1;
  });
}

}  // namespace

void Job::run(Actions actions) {
  if (!actions.empty()) {
    context_.follow_width();  // the lane may do what it is given before this returns
  }
  for (Action& action : actions) {
    std::visit([this](auto& value) { perform(value); }, action);
  }
}

bool Job::compares(std::int64_t steps) const {
  const std::int64_t every = context_.options.check_every;
  return steps < kFirstCheckedSteps || (every > 0 && steps % every == 0);
}

bool Job::check_next(std::int64_t steps) const {
  return active_->plan->options.data_path == plan::DataPath::Stats && compares(steps);
}

void Job::perform(LaunchReduce& action) {
  note_begun();
  device::ReduceBucket command;
  command.plan = active_->id;
  command.tag = machine_->attempt();
  command.bucket = action.bucket;
  command.unused = std::move(action.unused);
  command.compare = active_->plan->buckets[action.bucket].groups.size() > 1 && compares(steps_in_epoch_);
  command.defer = multiplied_in_a_row_ >= kMultipliedBefore;
  context_.lane.submit(std::move(command));
}

void Job::perform(LaunchFinish& action) {
  device::FinishStep command;
  command.plan = active_->id;
  command.tag = machine_->attempt();
  command.scale = action.scale;
  command.apply = !action.norm_only;
  command.stamp = attempt_word({epoch_, machine_->attempt()});
  command.rules = std::move(rules_);
  command.memory = std::move(step_memory_);
  step_max_norm_ = {action.max_norm, action.override_max_norm ? std::size_t{1} : 0};  // checked when the call arrived
  norm_scale_ = action.scale;
  norm_scaled_ = action.scaled;
  make_rules(command.rules);
  report_step_ = machine_->ask_of(0)->step;
  if (command.apply) {
    note_begun();
  }
  context_.lane.submit(std::move(command));
}

void Job::perform(LaunchScale& action) {
  device::ScaleGradients command;
  command.plan = active_->id;
  command.tag = machine_->attempt();
  step_max_norm_ = {action.max_norm, action.override_max_norm ? raw_norms_.size() : 0};
  abandoned_ = action.abandon;
  make_rules(rules_);
  for (std::size_t group = 0; group < rules_.size(); ++group) {
    command.outcomes.push_back(plan::apply_clip_rule(rules_[group], raw_norms_[group], norm_scale_));
    if (abandoned_) {
      plan::ClipOutcome outcome;
      outcome.norm = command.outcomes.back().norm;
      outcome.threshold = std::numeric_limits<double>::infinity();
      outcome.reason = "abandoned: nothing was multiplied";
      command.outcomes.back() = std::move(outcome);
    }
  }
  plan::decide_together(command.outcomes);
  scale_outcomes_ = command.outcomes;
  note_begun();
  context_.lane.submit(std::move(command));
}

void Job::perform(LaunchAbort& action) {
  quiet_by_ = context_.now + context_.options.deadlines.lane;
  context_.lane.submit(device::Abort{active_->id, action.attempt});
}

void Job::perform(AnswerRank& action) { answer_step(ranks_[index(action.rank)], action.error); }

void Job::perform(NormKnown& action) {
  StepReport report = measured_report(*active_->plan, active_->constants, action.math);
  report.policy_digest = policy_digest_;
  raw_norms_ = std::move(action.math.raw_group_norms);
  complete(report, machine_->attempt());
  report.next_attempt = report.attempt;
  report.check_next = check_next(steps_in_epoch_ + 1);
  const auto shared = std::make_shared<const StepReport>(std::move(report));
  norm_record_ = DoneRecord{{epoch_, shared->attempt}, shared, active_->plan};
  const std::shared_ptr<const std::string> text = record_ ? text_of(*shared) : nullptr;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    const auto told = report_for(shared, *active_->plan, static_cast<std::int64_t>(rank));
    answer_step(ranks_[rank], RankReport{told, told == shared ? text : nullptr});
  }
}

/// What only the job knows of a report.
void Job::complete(StepReport& report, std::uint64_t attempt) const {
  report.step = report_step_;
  report.epoch = epoch_;
  report.attempt = attempt;
  report.next_attempt = machine_->attempt();
  report.timings.reduce_s = reduce_s_;
  if (first_ask_ && last_ask_) {
    report.timings.wait_s = seconds(*last_ask_ - *first_ask_);
    report.timings.total_s = seconds(context_.now - *first_ask_);
  }
}

void Job::find_stable_buckets(std::vector<std::uint32_t>& stable) const {
  const std::size_t buckets = active_->plan->buckets.size();
  for (const Rank& rank : ranks_) {
    if (rank.bucket_digests.size() != buckets) {
      return;
    }
  }
  for (std::uint32_t bucket = 0; bucket < buckets; ++bucket) {
    std::optional<std::uint32_t> first;
    bool equal = true;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (!active_->plan->layout(static_cast<std::int64_t>(rank)).bucket_rows[bucket].empty()) {
        first = first.value_or(ranks_[rank].bucket_digests[bucket]);
        equal = equal && ranks_[rank].bucket_digests[bucket] == *first;
      }
    }
    if (equal) {
      stable.push_back(bucket);
    }
  }
}

void Job::perform(Committed& action) {
  const bool in_halves = !scale_outcomes_.empty();
  if (in_halves) {
    action.math.groups = std::exchange(scale_outcomes_, {});
  }
  const std::shared_ptr<StepReport> shared = history_.next();
  StepReport& report = *shared;
  step_report(*active_->plan, active_->constants, action.math, report);
  complete(report, action.attempt);
  commit_policies(action.math, report);
  find_stable_buckets(report.stable_buckets);
  ++steps_in_epoch_;
  multiplied_in_a_row_ = !in_halves && multiplies_all(action.math) ? multiplied_in_a_row_ + 1 : 0;
  report.check_next = check_next(steps_in_epoch_);
  EngineMetrics& metrics = context_.metrics;
  metrics.steps_committed.Increment();
  metrics.step_seconds.Observe(report.timings.total_s);
  metrics.step_wait_seconds.Observe(report.timings.wait_s);
  if (report.clipped) {
    metrics.steps_clipped.Increment();
  }
  if (report.found_inf) {
    metrics.nonfinite_values.Increment(static_cast<double>(action.math.nonfinite_total));
    publish_alert(
        "nonfinite",
        fmt::format(
            "step {}: {} non-finite values, first in tensor '{}'",
            report.step,
            action.math.nonfinite_total,
            report.nonfinite.empty() ? "" : report.nonfinite.front().tensor
        )
    );
  }
  if (!report.divergence.empty()) {
    metrics.divergences.Increment(static_cast<double>(report.divergence.size()));
    publish_alert(
        "divergence",
        fmt::format(
            "step {}: tensor '{}' differs on rank {}",
            report.step,
            report.divergence.front().tensor,
            fmt::join(report.divergence.front().ranks, ", ")
        )
    );
  }
  if (report.skipped && !(norm_scaled_ && report.found_inf)) {  // with a loss scale that is the run of things
    const bool raised = report.action == plan::StepAction::Raise;
    publish_alert(
        raised ? "step_raised" : "step_skipped",
        fmt::format("step {}: no optimizer steps: {}", report.step, report.reason)
    );
  }
  step_memory_ = std::move(action.math);
  history_.committed(shared, context_.now);
  answer_done(shared, action.attempt);
  publish_step(shared);
}

void Job::publish_step(const std::shared_ptr<const StepReport>& report) {
  if (context_.events) {
    step_event_.topic = "step";
    step_event_.uid = uid_;
    step_event_.job = name_;
    step_event_.epoch = epoch_;
    step_event_.report = report;
    context_.events(step_event_);
    step_event_.report.reset();
  }
}

/// The attempt is done: recorded first, then said.
void Job::answer_done(const std::shared_ptr<const StepReport>& report, std::uint64_t attempt) {
  std::vector<RankReport> answers = std::move(answers_);
  record_done(report, attempt, answers);
  done_ = DoneRecord{{epoch_, attempt}, report, active_->plan};
  forget_attempt();
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    answer_step(ranks_[rank], std::move(answers[rank]));
  }
  answers.clear();
  answers_ = std::move(answers);
}

void Job::perform(AttemptFailed& action) {
  quiet_by_.reset();
  if (stuck_) {
    stuck_.reset();
    spdlog::info("lane at rest again job={} epoch={} attempt={}", name_, epoch_, action.attempt);
  }
  Error error = transition_ ? *transition_ : std::move(action.error);
  error.job = name_;
  if (action.begun) {
    context_.metrics.steps_failed.Increment();
    history_.failed();
    failed_ = FailedRecord{{epoch_, action.attempt}, error};
  }
  forget_attempt();
  if (!transition_) {
    publish_alert(kind_of(error.code), error.message);
    spdlog::warn(
        "step failed job={} epoch={} attempt={} kind={} reason=\"{}\"",
        name_,
        epoch_,
        action.attempt,
        kind_of(error.code),
        error.message
    );
  } else {
    apply_transition();
  }
  answer_failed(error);
}

void Job::answer_failed(const Error& error) {
  answer_steps(error);
  for (const Reply<RankReport>& reply : std::exchange(departed_, {})) {
    if (!halted_) {
      reply(error);
    }
  }
}

void Job::answer_steps(const Error& error) {
  for (Rank& rank : ranks_) {
    answer_step(rank, error);
  }
}

void Job::answer_step(Rank& rank, Result<RankReport> result) const {
  const Reply<RankReport> reply = std::exchange(rank.step_reply, {});
  if (reply && !halted_) {
    reply(std::move(result));
  }
}

void Job::forget_attempt() {
  norm_record_.reset();
  scale_outcomes_.clear();
  raw_norms_.clear();
  import_state_ = {};
  abandoned_ = false;
  first_ask_.reset();
  last_ask_.reset();
  reduce_s_ = 0;
  half_warned_ = false;
  for (Rank& rank : ranks_) {
    rank.bucket_digests.clear();
  }
}

}  // namespace gradsync::engine
