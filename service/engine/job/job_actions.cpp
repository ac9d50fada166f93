// Performs the actions of the step machine.

#include "engine/job/job.hpp"
#include "engine/metrics.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <limits>
#include <string>

namespace gradsync::engine {

namespace {

constexpr std::int64_t kFirstCheckedSteps = 3;

/// The ranks that brought the values, with the micro-batch that completed the tensor's bucket where that is known.
std::string sources_of(const NonfiniteReport& finding) {
  std::string text;
  for (const NonfiniteInput& input : finding.inputs) {
    text += fmt::format("{} rank {}", text.empty() ? " of" : ",", input.rank);
    if (input.micro_batch) {
      text += fmt::format(" (complete in micro-batch {})", *input.micro_batch);
    }
  }
  return text;
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

void Job::perform(LaunchReduce& action) {
  note_begun();
  device::ReduceBucket command;
  command.plan = active_->id;
  command.tag = machine_->attempt();
  command.bucket = action.bucket;
  command.unused = std::move(action.unused);
  command.compare = active_->plan->buckets[action.bucket].groups.size() > 1 && compares(epochs_.steps());
  command.defer = action.defer;
  context_.lanes[action.lane].submit(std::move(command));
}

/// By which the outcomes of this attempt are made; they were checked when the call arrived.
template <typename Terms>
void Job::take_terms(const Terms& terms) {
  attempt_.terms.max_norm = {terms.max_norm, terms.override_max_norm ? std::size_t{1} : 0};
  attempt_.terms.scale = terms.scale;
  attempt_.terms.scaled = terms.scaled;
  attempt_.step = machine_->ask_of(0)->step;
}

void Job::perform(LaunchFinish& action) {
  device::FinishStep command;
  command.plan = active_->id;
  command.tag = machine_->attempt();
  command.scale = action.scale;
  command.apply = !action.norm_only;
  command.stamp = attempt_word({epochs_.epoch(), machine_->attempt()});
  take_terms(action);
  policies_.rules(attempt_.terms, command.rules);
  if (command.apply) {
    note_begun();
  }
  context_.lanes[action.lane].submit(std::move(command));
}

void Job::perform(LaunchMeasure& action) {
  context_.lanes[action.lane].submit(device::MeasureBuckets{active_->id, machine_->attempt(), std::move(action.buckets)}
  );
}

void Job::perform(Decide& action) {
  take_terms(action);
  std::vector<plan::ClipRule> rules;
  policies_.rules(attempt_.terms, rules);
  run(machine_->on_decided(join_cells(*active_->join, action.parts, rules, attempt_.terms.scale)));
}

void Job::perform(LaunchOutcomes& action) {
  context_.lanes[action.lane].submit(device::ScaleGradients{
      active_->id, machine_->attempt(), std::move(action.outcomes), std::move(action.buckets)});
}

void Job::perform(LaunchScale& action) {
  device::ScaleGradients command;
  command.plan = active_->id;
  command.tag = machine_->attempt();
  attempt_.terms.max_norm = {action.max_norm, action.override_max_norm ? attempt_.raw_norms.size() : 0};
  attempt_.terms.abandoned = action.abandon;
  std::vector<plan::ClipRule> rules;
  policies_.rules(attempt_.terms, rules);
  for (std::size_t group = 0; group < rules.size(); ++group) {
    command.outcomes.push_back(plan::apply_clip_rule(rules[group], attempt_.raw_norms[group], attempt_.terms.scale));
    if (attempt_.terms.abandoned) {
      plan::ClipOutcome outcome;
      outcome.norm = command.outcomes.back().norm;
      outcome.threshold = std::numeric_limits<double>::infinity();
      outcome.reason = "abandoned: nothing was multiplied";
      command.outcomes.back() = std::move(outcome);
    }
  }
  plan::decide_together(command.outcomes);
  attempt_.outcomes = command.outcomes;
  command.buckets = action.buckets;
  note_begun();
  context_.lanes[action.lane].submit(std::move(command));
}

void Job::perform(LaunchAbort& action) {
  attempt_.stop.on_told(context_.now);
  context_.lanes[action.lane].submit(device::Abort{active_->id, action.attempt});
}

void Job::perform(AnswerRank& action) { answer_step(call_of(action.rank), action.error); }

void Job::perform(NormKnown& action) {
  StepReport report = measured_report(*active_->plan, active_->constants, action.math);
  name_micro_batches(action.micro_batches, report);
  report.policy_digest = policies_.digest();
  attempt_.raw_norms = std::move(action.math.raw_group_norms);
  complete(report, machine_->attempt());
  report.next_attempt = report.attempt;
  report.check_next = compares(epochs_.steps() + 1);
  const auto shared = std::make_shared<const StepReport>(std::move(report));
  attempt_.norm = DoneRecord{{epochs_.epoch(), shared->attempt}, shared, active_->plan};
  const std::shared_ptr<const std::string> text = record_ ? text_of(*shared) : nullptr;
  for (std::size_t rank = 0; rank < attempt_.calls.size(); ++rank) {
    const auto told = report_for(shared, *active_->plan, static_cast<std::int64_t>(rank));
    answer_step(attempt_.calls[rank], RankReport{told, told == shared ? text : nullptr});
  }
}

/// Fills in the fields of a report that only the job knows.
void Job::complete(StepReport& report, std::uint64_t attempt) const {
  report.step = attempt_.step;
  report.epoch = epochs_.epoch();
  report.attempt = attempt;
  report.next_attempt = machine_->attempt();
  report.timings.reduce_s = attempt_.reduce_s;
  if (attempt_.first_ask && attempt_.last_ask) {
    report.timings.wait_s = seconds(*attempt_.last_ask - *attempt_.first_ask);
    report.timings.total_s = seconds(context_.now - *attempt_.first_ask);
  }
}

void Job::find_stable_buckets(std::vector<std::uint32_t>& stable) const {
  const std::size_t buckets = active_->plan->buckets.size();
  const std::vector<StepCall>& calls = attempt_.calls;
  for (const StepCall& call : calls) {
    if (call.bucket_digests.size() != buckets) {
      return;
    }
  }
  for (std::uint32_t bucket = 0; bucket < buckets; ++bucket) {
    std::optional<std::uint32_t> first;
    bool equal = true;
    for (std::size_t rank = 0; rank < calls.size(); ++rank) {
      if (!active_->plan->layout(static_cast<std::int64_t>(rank)).bucket_rows[bucket].empty()) {
        first = first.value_or(calls[rank].bucket_digests[bucket]);
        equal = equal && calls[rank].bucket_digests[bucket] == *first;
      }
    }
    if (equal) {
      stable.push_back(bucket);
    }
  }
}

void Job::count_step(const StepReport& report, std::uint64_t nonfinite_values) const {
  EngineMetrics& metrics = context_.metrics;
  metrics.steps_committed.Increment();
  metrics.step_seconds.Observe(report.timings.total_s);
  metrics.step_wait_seconds.Observe(report.timings.wait_s);
  if (report.clipped) {
    metrics.steps_clipped.Increment();
  }
  if (report.found_inf) {
    metrics.nonfinite_values.Increment(static_cast<double>(nonfinite_values));
  }
  metrics.divergences.Increment(static_cast<double>(report.divergence.size()));
}

void Job::publish_findings(const StepReport& report, std::uint64_t nonfinite_values) const {
  if (report.found_inf) {
    publish_alert(
        "nonfinite",
        fmt::format(
            "step {}: {} non-finite values, first in tensor '{}'{}",
            report.step,
            nonfinite_values,
            report.nonfinite.empty() ? "" : report.nonfinite.front().tensor,
            report.nonfinite.empty() ? "" : sources_of(report.nonfinite.front())
        )
    );
  }
  if (!report.divergence.empty()) {
    publish_alert(
        "divergence",
        fmt::format(
            "step {}: copies of tensor '{}' differ: rank {} {}",
            report.step,
            report.divergence.front().tensor,
            fmt::join(report.divergence.front().suspects, ", "),
            report.divergence.front().majority.empty() ? "from each other" : "from the other ranks"
        )
    );
  }
  if (report.skipped && !(attempt_.terms.scaled && report.found_inf)) {  // with a loss scale that is the run of things
    const bool raised = report.action == plan::StepAction::Raise;
    publish_alert(
        raised ? "step_raised" : "step_skipped",
        fmt::format("step {}: no optimizer steps: {}", report.step, report.reason)
    );
  }
}

void Job::perform(Committed& action) {
  if (!attempt_.outcomes.empty()) {  // the step was done in halves
    action.math.groups = std::exchange(attempt_.outcomes, {});
  }
  const std::shared_ptr<StepReport> shared = history_.next();
  StepReport& report = *shared;
  step_report(*active_->plan, active_->constants, action.math, report);
  name_micro_batches(action.micro_batches, report);
  complete(report, action.attempt);
  policies_.commit(*active_->plan, action.math, attempt_.terms, report);
  find_stable_buckets(report.stable_buckets);
  epochs_.on_step_done();
  report.check_next = compares(epochs_.steps());
  count_step(report, action.math.nonfinite_total);
  publish_findings(report, action.math.nonfinite_total);
  history_.committed(shared, context_.now);
  answer_done(shared, action.attempt);
  publish_step(shared);
}

void Job::publish_step(const std::shared_ptr<const StepReport>& report) const {
  if (context_.events) {
    Event event;
    event.topic = "step";
    event.uid = identity_.uid;
    event.job = identity_.name;
    event.epoch = epochs_.epoch();
    event.report = report;
    context_.events(event);
  }
}

/// The attempt is done: recorded first, then said.
void Job::answer_done(const std::shared_ptr<const StepReport>& report, std::uint64_t attempt) {
  std::vector<RankReport> answers = record_done(report, attempt);
  ended_.done = DoneRecord{{epochs_.epoch(), attempt}, report, active_->plan};
  Attempt over = std::exchange(attempt_, Attempt(attempt_.calls.size()));
  for (std::size_t rank = 0; rank < over.calls.size(); ++rank) {
    answer_step(over.calls[rank], std::move(answers[rank]));
  }
}

void Job::perform(AttemptFailed& action) {
  Attempt over = std::exchange(attempt_, Attempt(attempt_.calls.size()));
  if (over.stop.stuck()) {
    spdlog::info("lane at rest again job={} epoch={} attempt={}", identity_.name, epochs_.epoch(), action.attempt);
  }
  Error error = epochs_.ending() ? *epochs_.ending() : std::move(action.error);
  error.job = identity_.name;
  if (action.begun) {
    context_.metrics.steps_failed.Increment();
    history_.failed();
    ended_.failed = FailedRecord{{epochs_.epoch(), action.attempt}, error};
  }
  if (!epochs_.ending()) {
    publish_alert(kind_of(error.code), error.message);
    spdlog::warn(
        "step failed job={} epoch={} attempt={} kind={} reason=\"{}\"",
        identity_.name,
        epochs_.epoch(),
        action.attempt,
        kind_of(error.code),
        error.message
    );
  }
  perform(epochs_.on_attempt_failed(context_.now));
  answer_failed(over, error);
}

void Job::answer_failed(Attempt& attempt, const Error& error) const {
  for (StepCall& call : attempt.calls) {
    answer_step(call, error);
  }
  for (const Reply<RankReport>& reply : std::exchange(attempt.departed, {})) {
    if (!halted()) {
      reply(error);
    }
  }
}

void Job::answer_step(StepCall& call, Result<RankReport> result) const {
  const Reply<RankReport> reply = std::exchange(call.reply, {});
  if (reply && !halted()) {
    reply(std::move(result));
  }
}

}  // namespace gradsync::engine
