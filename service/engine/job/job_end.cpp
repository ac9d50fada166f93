// How an attempt ends: it is prepared, and then done or failed.

#include "engine/job/job.hpp"
#include "engine/metrics.hpp"
#include "engine/peers/sums/node_sums.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <string>
#include <utility>

namespace gradsync::engine {

namespace {

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

/// Who takes part has changed, which is said elsewhere; else the step itself has failed.
bool is_of_membership(ErrorCode code) {
  return code == ErrorCode::RankLost || code == ErrorCode::NodeLost || code == ErrorCode::StaleEpoch ||
         code == ErrorCode::Superseded || code == ErrorCode::Draining;
}

}  // namespace

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
    for (std::size_t seat = 0; seat < calls.size(); ++seat) {
      if (!active_->plan->layout(locals_.rank_of(seat)).bucket_rows[bucket].empty()) {
        first = first.value_or(calls[seat].bucket_digests[bucket]);
        equal = equal && calls[seat].bucket_digests[bucket] == *first;
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
  if (gauge_) {
    gauge_->set(report.norm, report.threshold);
  }
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

void Job::perform(Prepare& action) {
  if (!attempt_.outcomes.empty()) {  // the step was done in halves
    action.math.groups = std::exchange(attempt_.outcomes, {});
  }
  PreparedAttempt& prepared = attempt_.prepared.emplace();
  prepared.report = history_.next();
  StepReport& report = *prepared.report;
  step_report(*active_->plan, active_->constants, action.math, report);
  name_micro_batches(action.micro_batches, report);
  complete(report, action.attempt);
  policies_.prepare(action.math, attempt_.terms, report);
  find_stable_buckets(report.stable_buckets);
  report.check_next = compares(epochs_.steps() + 1);
  if (!locals_.alone()) {
    prepared.result = result_digest(action.math, report.policy_digest);
  }
  prepared.outcomes = std::move(action.math.groups);
  prepared.nonfinite_values = action.math.nonfinite_total;
  vote();
}

/// Texts are kept first: when anybody knows the attempt as done, every rank finds its answer.
void Job::vote() {
  recorder_.on_voted(word(), context_.now);
  attempt_.prepared->answers = kept_answers(attempt_.prepared->report);
  Voted voted{word(), {}};
  if (!peers_->alone()) {
    voted.result_digest = attempt_.prepared->result;
    voted.deadline = machine_->first_deadline();
    if (record_) {
      record_->vote(voted.word);
    }
  }
  if (peers_->vote(voted)) {
    Actions verdict = machine_->on_verdict(std::nullopt);
    perform(verdict);
  }
}

void Job::perform(Committed& action) {
  const PreparedAttempt& prepared = *attempt_.prepared;
  const std::shared_ptr<StepReport> report = prepared.report;
  policies_.commit(*active_->plan, prepared.outcomes, attempt_.terms, report->step);
  epochs_.on_step_done();
  count_step(*report, prepared.nonfinite_values);
  publish_findings(*report, prepared.nonfinite_values);
  history_.committed(report, context_.now);
  answer_done(action.attempt);
  publish_step(report);
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
void Job::answer_done(std::uint64_t attempt) {
  note_done(attempt);
  recorder_.on_done(attempt_word({epochs_.epoch(), attempt}), context_.now);
  policies_.settle();
  std::vector<RankReport> answers = std::move(attempt_.prepared->answers);
  ended_.done = DoneRecord{{epochs_.epoch(), attempt}, std::move(attempt_.prepared->report), active_->plan};
  attempt_.prepared.reset();
  Attempt over = std::exchange(attempt_, Attempt(attempt_.calls.size()));
  for (const DepartedCall& departed : over.departed) {
    if (!halted()) {
      departed.reply(answers[departed.seat]);
    }
  }
  for (std::size_t seat = 0; seat < over.calls.size(); ++seat) {
    answer_step(over.calls[seat], std::move(answers[seat]));
  }
}

void Job::perform(AttemptFailed& action) {
  Attempt over = std::exchange(attempt_, Attempt(attempt_.calls.size()));
  fresh_communicators_ = fresh_communicators_ || action.begun;
  if (over.prepared) {
    policies_.restore();
  }
  if (over.stop.stuck()) {
    spdlog::info("lane at rest again job={} epoch={} attempt={}", identity_.name, epochs_.epoch(), action.attempt);
  }
  const StepKey failed{*action.error.epoch, action.attempt};  // of the machine: another epoch may be on its way
  const bool counted = action.error.attempt != action.attempt;
  const bool in_doubt = action.error.code == ErrorCode::StepInDoubt;
  Error error = epochs_.ending() && !in_doubt ? *epochs_.ending() : std::move(action.error);
  error.job = identity_.name;
  const bool begun_elsewhere = !peers_->alone() && !epochs_.ending();  // ranks that call for it find why it failed
  if (counted && (action.begun || begun_elsewhere)) {
    context_.metrics.steps_failed.Increment();
    history_.failed();
    ended_.failed = FailedRecord{failed, error};
  }
  // Where nodes add up gradients the epoch ends with every step that fails.
  const bool ends_epoch = active_ && !peers_->alone() && active_->plan->options.data_path == plan::DataPath::Arena;
  if (!epochs_.ending() || (ends_epoch && !is_of_membership(error.code))) {
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
  if (counted && action.begun) {
    recorder_.on_failed(attempt_word(failed), error, context_.now);
    keep_dump(error);
  }
  perform(epochs_.on_attempt_failed(context_.now));
  answer_failed(over, error);
  fail_if_refused();
}

/// Other nodes have gone on, and failed attempts that this one had not come to.
void Job::fail_if_refused() {
  if (machine_ && active_ && active_->refused && word() <= active_->refused->word) {
    run(machine_->fail(active_->refused->error));
  }
}

void Job::answer_failed(Attempt& attempt, const Error& error) const {
  for (StepCall& call : attempt.calls) {
    answer_step(call, error);
  }
  for (const DepartedCall& departed : std::exchange(attempt.departed, {})) {
    if (!halted()) {
      departed.reply(error);
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
