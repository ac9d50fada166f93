#include "engine/step_machine.hpp"

#include "base/assert.hpp"
#include "base/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

namespace gradsync::engine {

namespace {

constexpr std::size_t kNamedTensors = 20;

std::string text_of(bool given, const std::optional<double>& max_norm) {
  if (!given) {
    return "as declared";
  }
  return max_norm ? fmt::format("{}", *max_norm) : "none";
}

}  // namespace

const char* method_of(Ask::Kind kind) {
  switch (kind) {
    case Ask::Kind::Finish:
      return "step.finish";
    case Ask::Kind::NormOnly:
      return "norm.compute";
    case Ask::Kind::Clip:
      return "clip.apply";
  }
  GRADSYNC_ASSERT(false, "an Ask without a method");
}

Ask make_ask(const FinishRequest& request, TimePoint now, TimePoint deadline) {
  Ask ask;
  ask.kind = request.kind == FinishKind::Finish ? Ask::Kind::Finish : Ask::Kind::NormOnly;
  ask.step = request.step;
  ask.scale = request.scale;
  ask.override_max_norm = request.override_max_norm;
  ask.max_norm = request.max_norm;
  ask.since = now;
  ask.half = now + (deadline - now) / 2;
  ask.deadline = deadline;
  return ask;
}

Ask make_ask(const ClipRequest& request, TimePoint now, TimePoint deadline) {
  Ask ask;
  ask.kind = Ask::Kind::Clip;
  ask.step = request.step;
  ask.override_max_norm = request.override_max_norm;
  ask.max_norm = request.max_norm;
  ask.since = now;
  ask.half = now + (deadline - now) / 2;
  ask.deadline = deadline;
  return ask;
}

bool same_terms(const Ask& a, const Ask& b) {
  return a.kind == b.kind && a.step == b.step && a.scale == b.scale && a.override_max_norm == b.override_max_norm &&
         a.max_norm == b.max_norm;
}

StepMachine::StepMachine(std::shared_ptr<const plan::Plan> plan, std::uint64_t epoch)
    : plan_(std::move(plan)),
      epoch_(epoch),
      ranks_(static_cast<std::size_t>(plan_->world_size)),
      unused_(plan_->buckets.size()) {
  for (Rank& rank : ranks_) {
    rank.ready.assign(plan_->buckets.size(), false);
    rank.is_unused.assign(plan_->tensors.size(), false);
  }
}

std::optional<Error> StepMachine::stale(std::int64_t rank, std::uint64_t attempt) const {
  if (attempt == attempt_) {
    return std::nullopt;
  }
  Error error = make_error(
      ErrorCode::StaleAttempt,
      fmt::format("rank {} sent attempt {}, but epoch {} is at attempt {}", rank, attempt, epoch_, attempt_),
      "continue with the epoch and attempt given here"
  );
  error.rank = rank;
  error.epoch = epoch_;
  error.attempt = attempt_;
  return error;
}

void StepMachine::mark_unused(std::int64_t rank_number, const std::vector<std::uint32_t>& tensors) {
  Rank& rank = ranks_[index(rank_number)];
  for (const std::uint32_t tensor : tensors) {
    if (rank.is_unused[tensor]) {
      continue;
    }
    if (rank.ready[plan_->tensors[tensor].bucket]) {
      // The bucket may already be reduced with this tensor's memory in it.
      Error error = make_error(
          ErrorCode::DuplicateReady,
          fmt::format(
              "rank {} called tensor '{}' unused after its bucket {} was ready",
              rank_number,
              plan_->tensors[tensor].declaration.name,
              plan_->tensors[tensor].bucket
          ),
          "mark tensors unused before the last tensor of their bucket is ready"
      );
      error.rank = rank_number;
      error.tensor = plan_->tensors[tensor].declaration.name;
      rank.notification_error = rank.notification_error.value_or(std::move(error));
      continue;
    }
    rank.is_unused[tensor] = true;
    rank.unused.push_back(tensor);
    unused_[plan_->tensors[tensor].bucket].push_back({tensor, rank_number});
  }
}

Actions StepMachine::on_bucket_ready(std::int64_t rank_number, std::uint64_t attempt, std::uint32_t bucket) {
  Actions actions;
  Rank& rank = ranks_[index(rank_number)];
  if (attempt < attempt_ || error_) {
    return actions;  // of an attempt that ended; its finish gets the recorded answer
  }
  if (attempt > attempt_) {
    rank.notification_error = rank.notification_error.value_or(*stale(rank_number, attempt));
    return actions;
  }
  if (bucket >= plan_->buckets.size()) {
    rank.notification_error = rank.notification_error.value_or(invalid_params(
        "bucket", fmt::format("bucket {} does not exist: the plan has {}", bucket, plan_->buckets.size())
    ));
    return actions;
  }
  if (rank.ready[bucket]) {
    Error error = make_error(
        ErrorCode::DuplicateReady,
        fmt::format("rank {} reported bucket {} ready twice in attempt {}", rank_number, bucket, attempt),
        "report each bucket once per step"
    );
    error.rank = rank_number;
    error.bucket = bucket;
    rank.notification_error = rank.notification_error.value_or(std::move(error));
    return actions;
  }
  rank.ready[bucket] = true;
  launch_ready(actions);
  return actions;
}

Actions StepMachine::on_unused(
    std::int64_t rank_number, std::uint64_t attempt, const std::vector<std::uint32_t>& tensors
) {
  Rank& rank = ranks_[index(rank_number)];
  if (attempt < attempt_ || error_) {
    return {};
  }
  if (attempt > attempt_) {
    rank.notification_error = rank.notification_error.value_or(*stale(rank_number, attempt));
    return {};
  }
  for (const std::uint32_t tensor : tensors) {
    if (tensor >= plan_->tensors.size()) {
      rank.notification_error = rank.notification_error.value_or(invalid_params(
          "tensors", fmt::format("tensor {} does not exist: the plan has {}", tensor, plan_->tensors.size())
      ));
      return {};
    }
  }
  mark_unused(rank_number, tensors);
  return {};
}

std::optional<Error> StepMachine::disagreement(std::int64_t rank_number, const Ask& ask) const {
  for (std::size_t other = 0; other < ranks_.size(); ++other) {
    const std::optional<Ask>& theirs = ranks_[other].ask;
    if (!theirs || other == index(rank_number)) {
      continue;
    }
    std::string what;
    if (theirs->kind != ask.kind) {
      what = fmt::format(
          "rank {} called {} and rank {} called {}", other, method_of(theirs->kind), rank_number, method_of(ask.kind)
      );
    } else if (theirs->step != ask.step) {
      what = fmt::format("rank {} finishes step {} and rank {} step {}", other, theirs->step, rank_number, ask.step);
    } else if (theirs->scale != ask.scale) {
      what = fmt::format("rank {} gave scale {} and rank {} scale {}", other, theirs->scale, rank_number, ask.scale);
    } else if (theirs->override_max_norm != ask.override_max_norm || theirs->max_norm != ask.max_norm) {
      what = fmt::format(
          "rank {} gave max_norm {} and rank {} max_norm {}",
          other,
          text_of(theirs->override_max_norm, theirs->max_norm),
          rank_number,
          text_of(ask.override_max_norm, ask.max_norm)
      );
    } else {
      continue;
    }
    Error error =
        make_error(ErrorCode::StepMismatch, what, "every rank must finish the same step with the same arguments");
    error.ranks = {static_cast<std::int64_t>(other), rank_number};
    error.step = ask.step;
    return error;
  }
  return std::nullopt;
}

std::optional<Error> StepMachine::bad_index(const FinishRequest& request) const {
  const std::size_t buckets = plan_->buckets.size();
  const std::size_t tensors = plan_->tensors.size();
  for (const std::uint32_t bucket : request.ready) {
    if (bucket >= buckets) {
      return invalid_params("ready", fmt::format("bucket {} does not exist: the plan has {}", bucket, buckets));
    }
  }
  for (const std::uint32_t tensor : request.unused) {
    if (tensor >= tensors) {
      return invalid_params("unused", fmt::format("tensor {} does not exist: the plan has {}", tensor, tensors));
    }
  }
  return std::nullopt;
}

Actions StepMachine::on_finish(
    std::int64_t rank_number, const FinishRequest& request, TimePoint now, TimePoint deadline
) {
  Actions actions;
  if (std::optional<Error> error = stale(rank_number, request.key.attempt)) {
    actions.push_back(AnswerRank{rank_number, std::move(*error)});
    return actions;
  }
  Rank& rank = ranks_[index(rank_number)];
  const Ask ask = make_ask(request, now, deadline);
  if (error_) {
    rank.ask = ask;  // the attempt is being aborted: this rank gets the error with the others
    return actions;
  }
  if (phase_ == Phase::NormGiven || phase_ == Phase::Scaling) {
    Error error = make_error(
        ErrorCode::StepMismatch,
        fmt::format(
            "rank {} called step.finish, but the norm of step {} was computed and waits for clip.apply",
            rank_number,
            request.step
        ),
        "call clip.apply on every rank; max_norm null leaves the gradients as they are"
    );
    error.rank = rank_number;
    error.step = request.step;
    return fail(std::move(error));
  }
  if (std::optional<Error> error = bad_index(request)) {
    actions.push_back(AnswerRank{rank_number, std::move(*error)});
    return actions;
  }
  mark_unused(rank_number, request.unused);
  if (request.ready_all) {
    rank.ready.assign(rank.ready.size(), true);
  }
  for (const std::uint32_t bucket : request.ready) {
    rank.ready[bucket] = true;
  }
  if (rank.notification_error) {
    Error error = std::move(*rank.notification_error);
    rank.notification_error.reset();
    rank.ask = ask;
    return fail(std::move(error));
  }
  if (std::vector<std::string> unready = unready_tensors(rank); !unready.empty()) {
    Error error = make_error(
        ErrorCode::NotReady,
        fmt::format(
            "rank {} finishes step {} with tensors neither ready nor unused: {}",
            rank_number,
            request.step,
            enumerate_names(unready, kNamedTensors)
        ),
        "report them ready, or unused when they got no gradient, and finish again"
    );
    error.rank = rank_number;
    error.step = request.step;
    unready.resize(std::min(unready.size(), kNamedTensors));
    error.tensors = std::move(unready);
    actions.push_back(AnswerRank{rank_number, std::move(error)});
    launch_ready(actions);
    return actions;
  }
  if (std::optional<Error> error = disagreement(rank_number, ask)) {
    rank.ask = ask;
    return fail(std::move(*error));
  }
  rank.ask = ask;
  launch_ready(actions);
  finish_if_complete(actions);
  return actions;
}

Actions StepMachine::on_clip(std::int64_t rank_number, const ClipRequest& request, TimePoint now, TimePoint deadline) {
  Actions actions;
  if (std::optional<Error> error = stale(rank_number, request.key.attempt)) {
    actions.push_back(AnswerRank{rank_number, std::move(*error)});
    return actions;
  }
  Rank& rank = ranks_[index(rank_number)];
  const Ask ask = make_ask(request, now, deadline);
  if (error_) {
    rank.ask = ask;
    return actions;
  }
  if (phase_ != Phase::NormGiven) {
    Error error = make_error(
        ErrorCode::StepMismatch,
        fmt::format("rank {} called clip.apply for step {}, but its norm was not computed", rank_number, request.step),
        "call norm.compute on every rank first, or step.finish for both at once"
    );
    error.rank = rank_number;
    error.step = request.step;
    actions.push_back(AnswerRank{rank_number, std::move(error)});
    return actions;
  }
  if (request.step != norm_step_) {
    Error error = make_error(
        ErrorCode::StepMismatch,
        fmt::format(
            "rank {} called clip.apply for step {}, but the norm that was computed is of step {}",
            rank_number,
            request.step,
            norm_step_
        ),
        "pass the step that norm.compute was called with"
    );
    error.rank = rank_number;
    error.step = norm_step_;
    actions.push_back(AnswerRank{rank_number, std::move(error)});
    return actions;
  }
  const std::optional<Error> error = disagreement(rank_number, ask);
  rank.ask = ask;
  if (error) {
    return fail(*error);
  }
  if (all_waiting()) {
    phase_ = Phase::Scaling;
    ++outstanding_;
    actions.push_back(LaunchScale{ask.override_max_norm, ask.max_norm});
  }
  return actions;
}

std::vector<std::string> StepMachine::unready_tensors(const Rank& rank) const {
  std::vector<std::string> names;
  for (std::size_t bucket = 0; bucket < plan_->buckets.size(); ++bucket) {
    if (rank.ready[bucket]) {
      continue;
    }
    for (const std::uint32_t tensor : plan_->buckets[bucket].tensors) {
      if (!rank.is_unused[tensor]) {
        names.push_back(plan_->tensors[tensor].declaration.name);
      }
    }
  }
  return names;
}

// Buckets become ready in any order and leave in plan order: every rank must see the same collectives.
void StepMachine::launch_ready(Actions& actions) {
  while (next_launch_ < plan_->buckets.size()) {
    const auto bucket = static_cast<std::uint32_t>(next_launch_);
    const bool ready = std::all_of(ranks_.begin(), ranks_.end(), [&](const Rank& rank) {
      if (rank.ready[bucket]) {
        return true;
      }
      // A bucket whose tensors are all unused needs no message of its own.
      return rank.ask.has_value();
    });
    if (!ready) {
      return;
    }
    LaunchReduce launch;
    launch.bucket = bucket;
    launch.unused = std::move(unused_[bucket]);
    unused_[bucket].clear();
    // The order of arrival must not show.
    std::sort(launch.unused.begin(), launch.unused.end(), [](const auto& a, const auto& b) {
      return std::tie(a.rank, a.tensor) < std::tie(b.rank, b.tensor);
    });
    ++next_launch_;
    ++outstanding_;
    actions.push_back(std::move(launch));
  }
}

void StepMachine::finish_if_complete(Actions& actions) {
  if (phase_ != Phase::Collecting || error_ || reduced_ < plan_->buckets.size() || !all_waiting()) {
    return;
  }
  const Ask& ask = *ranks_.front().ask;
  phase_ = Phase::Finishing;
  ++outstanding_;
  actions.push_back(LaunchFinish{ask.scale, ask.kind == Ask::Kind::NormOnly, ask.override_max_norm, ask.max_norm});
}

}  // namespace gradsync::engine
