// The steps of an epoch: what the machine decides is done here.

#include "engine/job.hpp"
#include "engine/lane_plan.hpp"
#include "engine/metrics.hpp"
#include "policy/fixed.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>

namespace gradsync::engine {

namespace {

constexpr std::int64_t kFirstCheckedSteps = 3;

bool same(const StepKey& a, const StepKey& b) { return a.epoch == b.epoch && a.attempt == b.attempt; }

}  // namespace

void Job::bucket_ready(std::int64_t rank_number, const BucketReady& ready) {
  const Rank& rank = ranks_[index(rank_number)];
  if (machine_ && rank.committed && ready.key.epoch == epoch_) {
    run(machine_->on_bucket_ready(rank_number, ready.key.attempt, ready.bucket));
  }
}

void Job::tensor_unused(std::int64_t rank_number, const TensorUnused& unused) {
  const Rank& rank = ranks_[index(rank_number)];
  if (machine_ && rank.committed && unused.key.epoch == epoch_) {
    run(machine_->on_unused(rank_number, unused.key.attempt, unused.tensors));
  }
}

std::optional<Result<StepReport>> Job::recorded(const StepKey& key) const {
  if (record_ && same(record_->key, key)) {
    return record_->outcome;
  }
  return std::nullopt;
}

std::optional<Error> Job::refuse_step(const Rank& rank, const StepKey& key) const {
  if (!machine_ || !rank.committed) {
    return make_error(
        ErrorCode::NotDeclared,
        fmt::format("rank {} has no committed declaration", &rank - ranks_.data()),
        "call gradients.declare and wait for its answer"
    );
  }
  if (key.epoch != epoch_ || (redeclare_ && !rank.fresh)) {
    Error error = ended_ && key.epoch < epoch_
                      ? *ended_
                      : make_error(
                            ErrorCode::StaleEpoch,
                            fmt::format("the call belongs to epoch {}, the job is in epoch {}", key.epoch, epoch_),
                            "continue with the epoch and attempt given here"
                        );
    if (redeclare_ && !rank.fresh) {
      error.hint = "every rank has to call gradients.declare again";
    }
    error.epoch = epoch_;
    error.attempt = machine_->attempt();
    return error;
  }
  return std::nullopt;
}

TimePoint Job::step_deadline(const std::optional<Milliseconds>& timeout) const {
  const EngineDeadlines& deadlines = context_.options.deadlines;
  return context_.now + timeout.value_or(history_.steps_committed() == 0 ? deadlines.first_step : deadlines.step);
}

void Job::finish(std::int64_t rank_number, FinishRequest request, Reply<StepReport> reply) {
  Rank& rank = ranks_[index(rank_number)];
  if (const auto before = recorded(request.key)) {
    reply(*before);
    return;
  }
  if (std::optional<Error> error = transition_ ? std::nullopt : refuse_step(rank, request.key)) {
    reply(std::move(*error));
    return;
  }
  if (request.kind == FinishKind::NormOnly && norm_record_ && same(norm_record_->key, request.key)) {
    reply(norm_record_->outcome);
    return;
  }
  if (!std::isfinite(request.scale) || request.scale <= 0) {
    reply(invalid_params(
        "scale",
        fmt::format("scale is {}, it must be finite and above 0", request.scale),
        "pass the loss scale the gradients carry, 1 for none"
    ));
    return;
  }
  if (request.override_max_norm && machine_) {
    const plan::ClipGroup& group = machine_->plan().clip_groups.front();
    if (const auto rule =
            policy::fixed_rule(group.clip, true, request.max_norm, machine_->plan().options.mode, group.norm_dtype);
        !rule) {
      reply(rule.error());
      return;
    }
  }
  const bool again = take_step_reply(rank, request.key, std::move(reply));
  if (again) {
    return;
  }
  rank.bucket_digests = std::move(request.bucket_digests);
  if (!transition_) {
    first_ask_ = first_ask_.value_or(context_.now);
    last_ask_ = context_.now;
    run(machine_->on_finish(rank_number, request, context_.now, step_deadline(request.timeout)));
  }
}

// A call that comes again after a lost connection takes the place of the first; whoever still listens there is told.
bool Job::take_step_reply(Rank& rank, const StepKey& key, Reply<StepReport> reply) {
  const bool again = rank.step_reply && same(rank.step_key, key);
  const Reply<StepReport> before = std::exchange(rank.step_reply, std::move(reply));
  rank.step_key = key;
  if (before) {
    before(make_error(
        ErrorCode::Superseded,
        fmt::format("rank {} made another step call while this one waited", &rank - ranks_.data()),
        "one step call at a time"
    ));
  }
  return again;
}

void Job::clip(std::int64_t rank_number, const ClipRequest& request, Reply<StepReport> reply) {
  Rank& rank = ranks_[index(rank_number)];
  if (const auto before = recorded(request.key)) {
    reply(*before);
    return;
  }
  if (std::optional<Error> error = transition_ ? std::nullopt : refuse_step(rank, request.key)) {
    reply(std::move(*error));
    return;
  }
  if (request.override_max_norm && machine_) {
    for (const plan::ClipGroup& group : machine_->plan().clip_groups) {
      if (const auto rule =
              policy::fixed_rule(group.clip, true, request.max_norm, machine_->plan().options.mode, group.norm_dtype);
          !rule) {
        reply(rule.error());
        return;
      }
    }
  }
  if (!take_step_reply(rank, request.key, std::move(reply)) && !transition_) {
    first_ask_ = first_ask_.value_or(context_.now);
    last_ask_ = context_.now;
    run(machine_->on_clip(rank_number, request, context_.now, step_deadline(request.timeout)));
  }
}

void Job::on_reduced(const device::Reduced& report) {
  if (active_ && active_->id == report.plan && machine_) {
    reduce_s_ += report.busy_s;
    context_.metrics.buckets_reduced.Increment();
    context_.metrics.reduce_seconds.Increment(report.busy_s);
    context_.metrics.bucket_bytes.Increment(static_cast<double>(active_->plan->buckets[report.bucket].size_bytes));
    run(machine_->on_reduced(report.tag));
  }
}

void Job::on_finished(device::Finished report) {
  if (active_ && active_->id == report.plan && machine_) {
    run(machine_->on_finished(report.tag, std::move(report.math)));
  }
}

void Job::on_scaled(const device::Scaled& report) {
  if (active_ && active_->id == report.plan && machine_) {
    run(machine_->on_scaled(report.tag, report.clip_s));
  }
}

void Job::on_aborted(const device::Aborted& report) {
  if (active_ && active_->id == report.plan && machine_) {
    run(machine_->on_aborted(report.tag));
  }
}

void Job::on_lane_failed(const device::Failed& report) {
  if (loading_ && (report.plan == loading_->id || report.buffer != 0)) {
    on_load_failed(report);
  } else if (active_ && active_->id == report.plan && machine_) {
    if (!report.aborted) {
      spdlog::error("lane failed job={} epoch={} attempt={} reason=\"{}\"", name_, epoch_, report.tag, report.message);
    }
    run(machine_->on_lane_failed(report));
  }
}

void Job::run(Actions actions) {
  for (Action& action : actions) {
    std::visit([this](auto& value) { perform(value); }, action);
  }
}

bool Job::compares() const {
  return steps_in_epoch_ < kFirstCheckedSteps || steps_in_epoch_ % context_.options.check_every == 0;
}

void Job::perform(LaunchReduce& action) {
  device::ReduceBucket command;
  command.plan = active_->id;
  command.tag = machine_->attempt();
  command.bucket = action.bucket;
  command.unused = std::move(action.unused);
  command.compare = active_->plan->buckets[action.bucket].groups.size() > 1 && compares();
  context_.lane.submit(std::move(command));
}

std::vector<plan::ClipRule> Job::rules(bool override_max_norm, const std::optional<double>& max_norm) const {
  std::vector<plan::ClipRule> rules;
  for (const plan::ClipGroup& group : active_->plan->clip_groups) {
    // Checked when the call arrived and at declaration, so every rule exists.
    rules.push_back(
        *policy::fixed_rule(group.clip, override_max_norm, max_norm, active_->plan->options.mode, group.norm_dtype)
    );
  }
  return rules;
}

void Job::perform(LaunchFinish& action) {
  device::FinishStep command;
  command.plan = active_->id;
  command.tag = machine_->attempt();
  command.scale = action.scale;
  command.apply = !action.norm_only;
  command.rules = rules(false, std::nullopt);
  if (action.override_max_norm) {
    command.rules.front() = rules(true, action.max_norm).front();
  }
  norm_scale_ = action.scale;
  report_step_ = machine_->ask_of(0)->step;
  context_.lane.submit(std::move(command));
}

void Job::perform(LaunchScale& action) {
  device::ScaleGradients command;
  command.plan = active_->id;
  command.tag = machine_->attempt();
  const StepReport& measured = *norm_record_->outcome;
  const std::vector<plan::ClipRule> clip_rules = rules(action.override_max_norm, action.max_norm);
  for (std::size_t group = 0; group < clip_rules.size(); ++group) {
    command.outcomes.push_back(
        plan::apply_clip_rule(clip_rules[group], measured.groups[group].norm * norm_scale_, norm_scale_)
    );
  }
  scale_outcomes_ = command.outcomes;
  context_.lane.submit(std::move(command));
}

void Job::perform(LaunchAbort& action) { context_.lane.submit(device::Abort{active_->id, action.attempt}); }

void Job::perform(AnswerRank& action) { answer_step(ranks_[index(action.rank)], action.error); }

void Job::perform(NormKnown& action) {
  StepReport report = report_of(action.math);
  report.attempt = machine_->attempt();
  for (GroupReport& group : report.groups) {
    group.coefficient = 1;
    group.clipped = false;
    group.reason = "measured: clip.apply decides";
  }
  report.coefficient = 1;
  report.clipped = false;
  report.reason = "measured: clip.apply decides";
  report.next_attempt = report.attempt;
  norm_record_ = Record{{epoch_, report.attempt}, report};
  for (Rank& rank : ranks_) {
    answer_step(rank, report);
  }
}

StepReport Job::report_of(const device::StepMath& math) const {
  const plan::Plan& plan = *active_->plan;
  StepReport report;
  report.step = report_step_;
  report.epoch = epoch_;
  report.norm = math.norm;
  for (std::size_t i = 0; i < plan.clip_groups.size(); ++i) {
    const plan::ClipOutcome& outcome = math.groups[i];
    report.groups.push_back(
        {plan.clip_groups[i].name,
         outcome.norm,
         outcome.threshold,
         outcome.coefficient,
         outcome.clipped,
         outcome.reason}
    );
    report.clipped = report.clipped || outcome.clipped;
  }
  report.threshold = report.groups.front().threshold;
  report.coefficient = report.groups.front().coefficient;
  report.reason = report.groups.front().reason;
  const std::vector<std::string> layers = layer_names(plan);
  for (std::size_t i = 0; i < math.layer_norms.size() && i < layers.size(); ++i) {
    report.layers.push_back({layers[i], math.layer_norms[i]});
  }
  for (const device::NonfiniteFinding& finding : math.nonfinite) {
    NonfiniteReport& entry = report.nonfinite.emplace_back();
    entry.tensor = plan.tensors[finding.tensor].declaration.name;
    entry.count = finding.count;
    for (const auto& [rank, count] : finding.inputs) {
      entry.inputs.push_back({rank, count});
    }
  }
  for (const device::DivergenceFinding& finding : math.divergence) {
    report.divergence.push_back({plan.tensors[finding.tensor].declaration.name, finding.ranks});
  }
  report.found_inf = math.nonfinite_total > 0;
  report.absent = math.absent;
  report.counted_elements = math.counted_elements;
  report.collectives = static_cast<std::int64_t>(plan.buckets.size());
  report.policy_digest = policy::policy_digest(plan.options);
  report.timings.reduce_s = reduce_s_;
  report.timings.norm_s = math.norm_s;
  report.timings.clip_s = math.clip_s;
  if (first_ask_ && last_ask_) {
    report.timings.wait_s = seconds(*last_ask_ - *first_ask_);
    report.timings.total_s = seconds(context_.now - *first_ask_);
  }
  return report;
}

void Job::perform(Committed& action) {
  if (!scale_outcomes_.empty()) {
    action.math.groups = std::exchange(scale_outcomes_, {});
  }
  StepReport report = report_of(action.math);
  report.attempt = action.attempt;
  report.next_attempt = machine_->attempt();
  const std::size_t buckets = active_->plan->buckets.size();
  const bool digests_given = std::all_of(ranks_.begin(), ranks_.end(), [&](const Rank& rank) {
    return rank.bucket_digests.size() == buckets;
  });
  for (std::uint32_t bucket = 0; digests_given && bucket < buckets; ++bucket) {
    const bool equal = std::all_of(ranks_.begin(), ranks_.end(), [&](const Rank& rank) {
      return rank.bucket_digests[bucket] == ranks_.front().bucket_digests[bucket];
    });
    if (equal) {
      report.stable_buckets.push_back(bucket);
    }
  }
  ++steps_in_epoch_;
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
  record_ = Record{{epoch_, action.attempt}, report};
  forget_attempt();
  history_.committed(report, context_.now);
  for (Rank& rank : ranks_) {
    answer_step(rank, report);
  }
  if (context_.events) {
    Event event;
    event.topic = "step";
    event.uid = uid_;
    event.job = name_;
    event.epoch = epoch_;
    event.report = std::make_shared<const StepReport>(std::move(report));
    context_.events(event);
  }
}

void Job::perform(AttemptFailed& action) {
  Error error = transition_ ? *transition_ : std::move(action.error);
  error.job = name_;
  if (action.begun) {
    context_.metrics.steps_failed.Increment();
    history_.failed();
  }
  record_ = Record{{epoch_, action.attempt}, error};
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
  for (Rank& rank : ranks_) {
    answer_step(rank, error);
  }
}

void Job::answer_step(Rank& rank, const Result<StepReport>& result) {
  if (rank.step_reply) {
    const Reply<StepReport> reply = std::exchange(rank.step_reply, nullptr);
    reply(result);
  }
}

void Job::forget_attempt() {
  norm_record_.reset();
  scale_outcomes_.clear();
  first_ask_.reset();
  last_ask_.reset();
  reduce_s_ = 0;
  half_warned_ = false;
  for (Rank& rank : ranks_) {
    rank.bucket_digests.clear();
  }
}

bool Job::deadline_suspended() const {
  const std::vector<std::int64_t> missing = machine_->missing_ranks();
  return std::any_of(missing.begin(), missing.end(), [this](std::int64_t rank) {
    return ranks_[index(rank)].paused_since.has_value();
  });
}

std::optional<TimePoint> Job::half_time() const {
  std::optional<TimePoint> earliest;
  if (half_warned_ || machine_->all_waiting()) {
    return earliest;
  }
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (const std::optional<Ask>& ask = machine_->ask_of(static_cast<std::int64_t>(rank))) {
      const TimePoint half = ask->since + (ask->deadline - ask->since) / 2;
      earliest = earliest ? std::min(*earliest, half) : half;
    }
  }
  return earliest;
}

}  // namespace gradsync::engine
