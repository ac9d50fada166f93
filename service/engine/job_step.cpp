// The step calls of ranks and the reports of the lane, on their way to the machine.

#include "engine/job.hpp"
#include "engine/metrics.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>

namespace gradsync::engine {

namespace {

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

std::optional<Result<RankReport>> Job::recorded(const Rank& rank, const StepKey& key) const {
  if (key.epoch < rank.joined_epoch) {
    return std::nullopt;
  }
  if (done_ && same(done_->key, key)) {
    return RankReport{report_for(done_->report, *done_->plan, &rank - ranks_.data()), nullptr};
  }
  if (failed_ && same(failed_->key, key)) {
    Error error = failed_->error;
    if (error.epoch) {  // where to go on, as of now
      error.epoch = transition_ ? epoch_ + 1 : epoch_;
      error.attempt = transition_ ? 0 : machine_->attempt();
    }
    return error;
  }
  return std::nullopt;
}

std::optional<Error> Job::refuse_step(const Rank& rank, const StepKey& key) const {
  const std::int64_t number = &rank - ranks_.data();
  if (!machine_ || !rank.committed) {
    return make_error(
        ErrorCode::NotDeclared,
        fmt::format("rank {} has no committed declaration", number),
        "call gradients.declare and wait for its answer"
    );
  }
  const bool must_declare = redeclare_ && !rank.fresh;
  if (key.epoch == epoch_ && !must_declare) {
    return machine_->stale(number, key.attempt);
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
        ErrorCode::StaleEpoch, fmt::format("epoch {} has not begun: rank {} has not declared for it", epoch_, number)
    );
  }
  if (must_declare) {
    error.hint = "every rank has to call gradients.declare again";
  }
  error.epoch = epoch_;
  error.attempt = machine_->attempt();
  return error;
}

std::optional<Result<RankReport>> Job::answer_at_hand(const Rank& rank, const StepKey& key) const {
  if (auto before = recorded(rank, key)) {
    return before;
  }
  if (stuck_) {
    return Result<RankReport>(*stuck_);
  }
  if (std::optional<Error> error = transition_ ? std::nullopt : refuse_step(rank, key)) {
    return Result<RankReport>(std::move(*error));
  }
  return std::nullopt;
}

TimePoint Job::step_deadline(const std::optional<Milliseconds>& timeout) const {
  const EngineDeadlines& deadlines = context_.options.deadlines;
  return deadline_after(context_.now, timeout.value_or(steps_in_epoch_ == 0 ? deadlines.first_step : deadlines.step));
}

void Job::finish(std::int64_t rank_number, FinishRequest request, Reply<RankReport> reply) {
  Rank& rank = ranks_[index(rank_number)];
  if (const auto answer = answer_at_hand(rank, request.key)) {
    reply(*answer);
    return;
  }
  if (request.kind == FinishKind::NormOnly && norm_record_ && same(norm_record_->key, request.key)) {
    reply(RankReport{report_for(norm_record_->report, *norm_record_->plan, rank_number), nullptr});
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
    if (const auto checked = policies_->check({request.max_norm, 1}); !checked) {
      reply(checked.error());
      return;
    }
  }
  const TimePoint deadline = step_deadline(request.timeout);
  if (!take_step_reply(rank, request.key, make_ask(request, context_.now, deadline), std::move(reply))) {
    return;
  }
  rank.bucket_digests = std::move(request.bucket_digests);
  if (!transition_) {
    note_ask();
    run(machine_->on_finish(rank_number, request, context_.now, deadline));
    follow_pauses();
  }
}

// A call that comes again after a lost connection takes the place of the first; whoever still listens there is told.
// True: the call is new, and the machine has to hear of it.
bool Job::take_step_reply(Rank& rank, const StepKey& key, const Ask& ask, Reply<RankReport> reply) {
  const std::int64_t number = &rank - ranks_.data();
  if (!rank.step_reply) {
    rank.step_reply = std::move(reply);
    rank.step_key = key;
    rank.step_ask = ask;
    return true;
  }
  if (!same(rank.step_key, key) || !same_terms(rank.step_ask, ask)) {
    Error error = make_error(
        ErrorCode::InvalidRequest,
        fmt::format(
            "rank {} called {} for step {}, but its {} for step {} still waits",
            number,
            method_of(ask.kind),
            ask.step,
            method_of(rank.step_ask.kind),
            rank.step_ask.step
        ),
        "one step call at a time; a call that comes again repeats its arguments"
    );
    error.rank = number;
    reply(std::move(error));
    return false;
  }
  const Reply<RankReport> before = std::exchange(rank.step_reply, std::move(reply));
  before(make_error(
      ErrorCode::Superseded,
      fmt::format("rank {} made this call again while it waited", number),
      "the newer call is answered"
  ));
  return false;
}

void Job::note_ask() {
  first_ask_ = first_ask_.value_or(context_.now);
  last_ask_ = context_.now;
}

void Job::clip(std::int64_t rank_number, const ClipRequest& request, Reply<RankReport> reply) {
  Rank& rank = ranks_[index(rank_number)];
  if (const auto answer = answer_at_hand(rank, request.key)) {
    reply(*answer);
    return;
  }
  if (request.override_max_norm && machine_) {
    if (const auto checked = policies_->check({request.max_norm, machine_->plan().clip_groups.size()}); !checked) {
      reply(checked.error());
      return;
    }
  }
  const TimePoint deadline = step_deadline(request.timeout);
  if (take_step_reply(rank, request.key, make_ask(request, context_.now, deadline), std::move(reply)) && !transition_) {
    note_ask();
    run(machine_->on_clip(rank_number, request, context_.now, deadline));
    follow_pauses();
  }
}

void Job::on_reduced(const device::Reduced& report) {
  if (active_ && active_->id == report.plan && machine_) {
    reduce_s_ += report.busy_s;
    context_.metrics.buckets_reduced.Increment();
    context_.metrics.reduce_seconds.Increment(report.busy_s);
    context_.metrics.bucket_bytes.Increment(static_cast<double>(active_->plan->buckets[report.bucket].size_bytes));
    machine_->on_reduced(report.tag);
  }
}

void Job::on_finished(device::Finished report) {
  rules_ = std::move(report.rules);
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
      // What is refused behind the first failure, such as a norm of buckets that were not reduced, is no second one.
      spdlog::log(
          machine_->failing() ? spdlog::level::debug : spdlog::level::err,
          "lane failed job={} epoch={} attempt={} reason=\"{}\"",
          name_,
          epoch_,
          report.tag,
          report.message
      );
    }
    run(machine_->on_lane_failed(report));
  }
}

}  // namespace gradsync::engine
