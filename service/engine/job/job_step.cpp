// The step calls of ranks and the reports of the lane, on their way to the machine.

#include "engine/job/job.hpp"
#include "engine/metrics.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>

namespace gradsync::engine {

namespace {

bool same(const StepKey& a, const StepKey& b) { return a.epoch == b.epoch && a.attempt == b.attempt; }

}  // namespace

void Job::bucket_ready(std::int64_t rank, const BucketReady& ready) {
  if (machine_ && epochs_.seat(rank).declaration.committed && ready.key.epoch == epochs_.epoch()) {
    if (ready.key.attempt == machine_->attempt()) {
      recorder_.on_ready(attempt_word(ready.key), ready.bucket, rank, context_.now);
    }
    run(machine_->on_bucket_ready(rank, ready.key.attempt, ready.bucket, ready.micro_batch));
  }
}

void Job::tensor_unused(std::int64_t rank, const TensorUnused& unused) {
  if (machine_ && epochs_.seat(rank).declaration.committed && unused.key.epoch == epochs_.epoch()) {
    run(machine_->on_unused(rank, unused.key.attempt, unused.tensors));
  }
}

std::optional<Result<RankReport>> Job::recorded(std::int64_t rank, const StepKey& key) const {
  if (key.epoch < epochs_.seat(rank).joined_epoch) {
    return std::nullopt;
  }
  if (ended_.done && same(ended_.done->key, key)) {
    return RankReport{report_for(ended_.done->report, *ended_.done->plan, rank), nullptr};
  }
  if (ended_.failed && same(ended_.failed->key, key)) {
    Error error = ended_.failed->error;
    if (error.epoch) {  // where to go on, as of now
      error.epoch = epochs_.coming_epoch();
      error.attempt = epochs_.ending() ? 0 : machine_->attempt();
    }
    return error;
  }
  return std::nullopt;
}

std::optional<Error> Job::refuse_step(std::int64_t rank, const StepKey& key) const {
  std::optional<Error> error = epochs_.refuse_step(rank, key, machine_ ? machine_->attempt() : 0);
  return error ? error : machine_->stale(rank, key.attempt);
}

std::optional<Result<RankReport>> Job::answer_at_hand(std::int64_t rank, const StepKey& key) {
  if (auto before = recorded(rank, key)) {
    if (!*before) {
      epochs_.on_told(rank, before->error());
    }
    return before;
  }
  if (const std::optional<Error>& stuck = attempt_.stop.stuck()) {
    return Result<RankReport>(*stuck);
  }
  const bool waits_for_end = epochs_.ending() && locals_.seat_of(rank);  // else it came since, and has not declared
  if (std::optional<Error> error = waits_for_end ? std::nullopt : refuse_step(rank, key)) {
    return Result<RankReport>(std::move(*error));
  }
  return std::nullopt;
}

TimePoint Job::step_deadline(const std::optional<Milliseconds>& timeout) const {
  const EngineDeadlines& deadlines = context_.options.deadlines;
  return deadline_after(context_.now, timeout.value_or(epochs_.steps() == 0 ? deadlines.first_step : deadlines.step));
}

void Job::finish(std::int64_t rank, FinishRequest request, Reply<RankReport> reply) {
  if (const auto answer = answer_at_hand(rank, request.key)) {
    reply(*answer);
    return;
  }
  if (request.kind == FinishKind::NormOnly && attempt_.norm && same(attempt_.norm->key, request.key)) {
    reply(RankReport{report_for(attempt_.norm->report, *attempt_.norm->plan, rank), nullptr});
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
    if (const auto checked = policies_.check({request.max_norm, 1}); !checked) {
      reply(checked.error());
      return;
    }
  }
  const TimePoint deadline = step_deadline(request.timeout);
  if (!take_step_reply(rank, request.key, make_ask(request, context_.now, deadline), std::move(reply))) {
    return;
  }
  call_of(rank).bucket_digests = std::move(request.bucket_digests);
  if (!epochs_.ending()) {
    note_ask();
    note_finish(rank, request);
    run(machine_->on_finish(rank, request, context_.now, deadline));
    follow_step_call(rank);
  }
}

// A call that comes again after a lost connection takes the place of the first; the first, if a client still listens
// there, gets an error. True: the call is new, and the machine must be told.
bool Job::take_step_reply(std::int64_t rank, const StepKey& key, const Ask& ask, Reply<RankReport> reply) {
  StepCall& call = call_of(rank);
  epochs_.on_step_called(rank);
  if (!call.reply) {
    call.reply = std::move(reply);
    call.key = key;
    call.ask = ask;
    return true;
  }
  if (!same(call.key, key) || !same_terms(call.ask, ask)) {
    Error error = make_error(
        ErrorCode::InvalidRequest,
        fmt::format(
            "rank {} called {} for step {}, but its {} for step {} still waits",
            rank,
            method_of(ask.kind),
            ask.step,
            method_of(call.ask.kind),
            call.ask.step
        ),
        "one step call at a time; a call that comes again repeats its arguments"
    );
    error.rank = rank;
    reply(std::move(error));
    return false;
  }
  const Reply<RankReport> before = std::exchange(call.reply, std::move(reply));
  before(make_error(
      ErrorCode::Superseded,
      fmt::format("rank {} made this call again while it waited", rank),
      "the newer call is answered"
  ));
  return false;
}

/// After the machine heard of a step call.
void Job::follow_step_call(std::int64_t rank) {
  if (machine_->waiting(rank)) {
    perform(epochs_.on_step_waits(rank));
  }
  follow_pauses();
}

void Job::note_ask() {
  attempt_.first_ask = attempt_.first_ask.value_or(context_.now);
  attempt_.last_ask = context_.now;
}

void Job::clip(std::int64_t rank, const ClipRequest& request, Reply<RankReport> reply) {
  if (const auto answer = answer_at_hand(rank, request.key)) {
    reply(*answer);
    return;
  }
  if (request.override_max_norm && machine_) {
    if (const auto checked = policies_.check({request.max_norm, machine_->plan().clip_groups.size()}); !checked) {
      reply(checked.error());
      return;
    }
  }
  const TimePoint deadline = step_deadline(request.timeout);
  if (take_step_reply(rank, request.key, make_ask(request, context_.now, deadline), std::move(reply)) &&
      !epochs_.ending()) {
    note_ask();
    run(machine_->on_clip(rank, request, context_.now, deadline));
    follow_step_call(rank);
  }
}

void Job::on_reduced(device::LaneId lane, const device::Reduced& report) {
  if (active_ && active_->id == report.plan && machine_) {
    const std::size_t share = active_->share_of(lane);
    attempt_.reduce_s.resize(active_->shares.size());
    attempt_.reduce_s[share] += report.busy_s;
    context_.metrics.reduce_seconds.Increment(report.busy_s);
    if (peers_->alone() || share == 0) {  // where each lane has every bucket, the first one counts them
      context_.metrics.buckets_reduced.Increment();
      context_.metrics.bucket_bytes.Increment(static_cast<double>(active_->plan->buckets[report.bucket].size_bytes));
    }
    if (!peers_->alone()) {
      Communicators& used = active_->communicators;
      context_.metrics.wire_bytes.Increment(static_cast<double>(used.bytes_of(share, report.bucket)));
      context_.metrics.collectives.Increment(static_cast<double>(used.collectives_of(share, report.bucket)));
      used.on_reduced(share, report.bucket, context_.now);
    }
    if (report.tag == machine_->attempt()) {
      recorder_.on_reduced(word(), report, context_.now);
    }
    machine_->on_reduced(lane, report.tag);
  }
}

void Job::on_finished(device::LaneId lane, device::Finished report) {
  if (active_ && active_->id == report.plan && machine_) {
    const std::uint64_t tag = report.tag;
    if (tag == machine_->attempt()) {
      recorder_.on_measured(word(), context_.now);
    }
    if (report.raw && tag == machine_->attempt()) {
      attempt_.raw.resize(active_->shares.size());
      attempt_.raw[active_->share_of(lane)] = std::move(report);
    }
    run(machine_->on_finished(lane, tag, std::move(report.math)));
  }
}

void Job::on_measured(device::LaneId lane, device::Measured report) {
  if (active_ && active_->id == report.plan && machine_) {
    run(machine_->on_measured(lane, std::move(report)));
  }
}

void Job::on_scaled(device::LaneId lane, const device::Scaled& report) {
  if (active_ && active_->id == report.plan && machine_) {
    run(machine_->on_scaled(lane, report.tag, report.clip_s));
  }
}

void Job::on_rows_read(device::LaneId lane, device::RowsRead report) {
  if (active_ && active_->id == report.plan && machine_ && machine_->on_rows_read(lane, report.tag)) {
    const auto site = static_cast<std::uint32_t>(active_->share_of(lane));
    perform(peers_->tell(LocalRows{{word(), std::move(report.box_hashes), std::move(report.rows), site}}));
  }
}

void Job::on_aborted(device::LaneId lane, const device::Aborted& report) {
  if (active_ && active_->id == report.plan && machine_) {
    run(machine_->on_aborted(lane, report.tag));
  }
}

void Job::on_lane_failed(device::LaneId lane, const device::Failed& report) {
  if (epochs_.loads() && (owns_plan(report.plan) || report.buffer != 0)) {
    on_load_failed(report);
  } else if (active_ && active_->id == report.plan && machine_) {
    if (!report.aborted) {
      // A command that is refused after the first failure, such as a norm of buckets that were not reduced, is not a
      // failure of its own.
      spdlog::log(
          machine_->failing() ? spdlog::level::debug : spdlog::level::err,
          "lane failed job={} epoch={} attempt={} reason=\"{}\"",
          identity_.name,
          epochs_.epoch(),
          report.tag,
          report.message
      );
    }
    std::optional<Error> why;
    if (report.wire_lost) {
      why = active_->offered ? communicator_error(report) : wire_error(report);
    }
    run(machine_->on_lane_failed(lane, report, std::move(why)));
  }
}

}  // namespace gradsync::engine
