#include "engine/step_machine.hpp"

#include "base/assert.hpp"
#include "base/text.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace gradsync::engine {

namespace {

std::string text_of(bool given, const std::optional<double>& max_norm) {
  if (!given) {
    return "as declared";
  }
  return max_norm ? fmt::format("{}", *max_norm) : "none";
}

constexpr std::size_t kNamedTensors = 20;

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

StepMachine::StepMachine(std::shared_ptr<const plan::Plan> plan, std::uint64_t epoch)
    : plan_(std::move(plan)), epoch_(epoch), ranks_(static_cast<std::size_t>(plan_->world_size)) {
  for (Rank& rank : ranks_) {
    rank.ready.assign(plan_->buckets.size(), false);
    rank.is_unused.assign(plan_->tensors.size(), false);
  }
}

Error StepMachine::attempt_error(std::int64_t rank, std::uint64_t attempt) const {
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

bool StepMachine::mark_ready(Rank& rank, std::uint32_t bucket) {
  if (rank.ready[bucket]) {
    return false;
  }
  rank.ready[bucket] = true;
  return true;
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
  }
}

Actions StepMachine::on_bucket_ready(std::int64_t rank_number, std::uint64_t attempt, std::uint32_t bucket) {
  Actions actions;
  Rank& rank = ranks_[index(rank_number)];
  if (attempt < attempt_ || error_) {
    return actions;  // of an attempt that ended; its finish gets the recorded answer
  }
  if (attempt > attempt_) {
    rank.notification_error = rank.notification_error.value_or(attempt_error(rank_number, attempt));
    return actions;
  }
  if (bucket >= plan_->buckets.size()) {
    rank.notification_error = rank.notification_error.value_or(invalid_params(
        "bucket", fmt::format("bucket {} does not exist: the plan has {}", bucket, plan_->buckets.size())
    ));
    return actions;
  }
  if (!mark_ready(rank, bucket)) {
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
    rank.notification_error = rank.notification_error.value_or(attempt_error(rank_number, attempt));
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

Actions StepMachine::on_finish(
    std::int64_t rank_number, const FinishRequest& request, TimePoint now, TimePoint deadline
) {
  Actions actions;
  if (request.key.attempt != attempt_) {
    actions.push_back(AnswerRank{rank_number, attempt_error(rank_number, request.key.attempt)});
    return actions;
  }
  Rank& rank = ranks_[index(rank_number)];
  Ask ask;
  ask.kind = request.kind == FinishKind::Finish ? Ask::Kind::Finish : Ask::Kind::NormOnly;
  ask.step = request.step;
  ask.scale = request.scale;
  ask.override_max_norm = request.override_max_norm;
  ask.max_norm = request.max_norm;
  ask.since = now;
  ask.deadline = deadline;
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
  const auto bad_bucket = std::find_if(request.ready.begin(), request.ready.end(), [&](std::uint32_t bucket) {
    return bucket >= plan_->buckets.size();
  });
  const auto bad_tensor = std::find_if(request.unused.begin(), request.unused.end(), [&](std::uint32_t tensor) {
    return tensor >= plan_->tensors.size();
  });
  if (bad_bucket != request.ready.end() || bad_tensor != request.unused.end()) {
    const bool of_bucket = bad_bucket != request.ready.end();
    actions.push_back(AnswerRank{
        rank_number,
        of_bucket
            ? invalid_params(
                  "ready", fmt::format("bucket {} does not exist: the plan has {}", *bad_bucket, plan_->buckets.size())
              )
            : invalid_params(
                  "unused", fmt::format("tensor {} does not exist: the plan has {}", *bad_tensor, plan_->tensors.size())
              ),
    });
    return actions;
  }
  mark_unused(rank_number, request.unused);
  for (std::uint32_t bucket = 0; bucket < plan_->buckets.size(); ++bucket) {
    if (request.ready_all) {
      rank.ready[bucket] = true;
    }
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
  if (request.key.attempt != attempt_) {
    actions.push_back(AnswerRank{rank_number, attempt_error(rank_number, request.key.attempt)});
    return actions;
  }
  Rank& rank = ranks_[index(rank_number)];
  Ask ask;
  ask.kind = Ask::Kind::Clip;
  ask.step = request.step;
  ask.override_max_norm = request.override_max_norm;
  ask.max_norm = request.max_norm;
  ask.since = now;
  ask.deadline = deadline;
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
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      for (const std::uint32_t tensor : ranks_[rank].unused) {
        if (plan_->tensors[tensor].bucket == bucket) {
          launch.unused.push_back({tensor, static_cast<std::int64_t>(rank)});
        }
      }
    }
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

Actions StepMachine::on_reduced(std::uint64_t tag) {
  Actions actions;
  if (tag != attempt_) {
    return actions;
  }
  --outstanding_;
  ++reduced_;
  finish_if_complete(actions);
  return actions;
}

Actions StepMachine::on_finished(std::uint64_t tag, device::StepMath math) {
  Actions actions;
  if (tag != attempt_) {
    return actions;
  }
  --outstanding_;
  if (error_) {
    return actions;  // the Abort's report settles it
  }
  if (ranks_.front().ask->kind == Ask::Kind::NormOnly) {
    phase_ = Phase::NormGiven;
    math_ = math;
    for (Rank& rank : ranks_) {
      rank.ask.reset();
    }
    actions.push_back(NormKnown{std::move(math)});
    return actions;
  }
  actions.push_back(Committed{attempt_, std::move(math)});
  end_attempt();
  return actions;
}

Actions StepMachine::on_scaled(std::uint64_t tag, double clip_s) {
  Actions actions;
  if (tag != attempt_) {
    return actions;
  }
  --outstanding_;
  if (error_) {
    return actions;
  }
  math_.clip_s = clip_s;
  actions.push_back(Committed{attempt_, std::move(math_)});
  end_attempt();
  return actions;
}

Actions StepMachine::on_lane_failed(const device::Failed& report) {
  if (report.tag != attempt_) {
    return {};
  }
  --outstanding_;
  if (error_) {
    Actions actions;
    settle_failure(actions);
    return actions;
  }
  return fail(make_error(
      ErrorCode::StepFailed,
      "the lane failed: " + report.message,
      "the gradients of this step are lost: compute them again"
  ));
}

Actions StepMachine::on_aborted(std::uint64_t tag) {
  Actions actions;
  if (tag != attempt_) {
    return actions;
  }
  --outstanding_;
  settle_failure(actions);
  return actions;
}

Actions StepMachine::fail(Error error) {
  Actions actions;
  if (error_) {
    return actions;
  }
  error_ = std::move(error);
  if (outstanding_ > 0) {
    abort_sent_ = true;
    ++outstanding_;
    actions.push_back(LaunchAbort{attempt_});
    return actions;
  }
  settle_failure(actions);
  return actions;
}

void StepMachine::settle_failure(Actions& actions) {
  if (!error_ || outstanding_ > 0) {
    return;
  }
  Error error = std::move(*error_);
  const std::uint64_t failed = attempt_;
  const bool was_begun = begun();
  end_attempt();
  if (!error.epoch) {
    error.epoch = epoch_;
    error.attempt = attempt_;
  }
  actions.push_back(AttemptFailed{failed, std::move(error), was_begun});
}

void StepMachine::end_attempt() {
  ++attempt_;
  phase_ = Phase::Collecting;
  next_launch_ = 0;
  reduced_ = 0;
  abort_sent_ = false;
  error_.reset();
  for (Rank& rank : ranks_) {
    rank.ready.assign(rank.ready.size(), false);
    for (const std::uint32_t tensor : rank.unused) {
      rank.is_unused[tensor] = false;
    }
    rank.unused.clear();
    rank.ask.reset();
    rank.notification_error.reset();
  }
}

bool StepMachine::all_waiting() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.ask.has_value(); });
}

bool StepMachine::begun() const {
  return phase_ != Phase::Collecting || std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
           return rank.ask.has_value() || std::find(rank.ready.begin(), rank.ready.end(), true) != rank.ready.end();
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
  if (error_) {
    return "the lane to stop after: " + error_->message;
  }
  const std::vector<std::int64_t> missing = missing_ranks();
  if (missing.size() == ranks_.size()) {
    return phase_ == Phase::NormGiven ? "clip.apply of every rank" : "the next step";
  }
  if (missing.empty()) {
    return fmt::format("the lane: {} of {} buckets reduced", reduced_, plan_->buckets.size());
  }
  return fmt::format("rank{} {}", missing.size() > 1 ? "s" : "", fmt::join(missing, ", "));
}

std::optional<TimePoint> StepMachine::deadline() const {
  std::optional<TimePoint> earliest;
  if (error_) {
    return earliest;
  }
  for (const Rank& rank : ranks_) {
    if (rank.ask && (!earliest || rank.ask->deadline < *earliest)) {
      earliest = rank.ask->deadline;
    }
  }
  return earliest;
}

void StepMachine::extend_deadlines(Duration by) {
  for (Rank& rank : ranks_) {
    if (rank.ask) {
      rank.ask->deadline += by;
    }
  }
}

Actions StepMachine::on_deadline(TimePoint now) {
  const std::optional<TimePoint> due = deadline();
  if (!due || *due > now) {
    return {};
  }
  const auto waiting_longest = std::min_element(ranks_.begin(), ranks_.end(), [](const Rank& a, const Rank& b) {
    return a.ask && (!b.ask || a.ask->since < b.ask->since);
  });
  const double waited_s = seconds(now - waiting_longest->ask->since);
  const std::vector<std::int64_t> missing = missing_ranks();
  std::vector<std::string> tensors;
  for (const std::int64_t rank : missing) {
    for (std::string& name : unready_tensors(ranks_[index(rank)])) {
      if (std::find(tensors.begin(), tensors.end(), name) == tensors.end()) {
        tensors.push_back(std::move(name));
      }
      if (tensors.size() > kNamedTensors) {
        break;
      }
    }
  }
  Error error = make_error(
      ErrorCode::StepTimeout,
      missing.empty() ? fmt::format(
                            "the lane did not finish within {:.1f} s: {} of {} buckets reduced",
                            waited_s,
                            reduced_,
                            plan_->buckets.size()
                        )
                      : fmt::format(
                            "waited {:.1f} s for rank{} {}; not ready there: {}",
                            waited_s,
                            missing.size() > 1 ? "s" : "",
                            fmt::join(missing, ", "),
                            tensors.empty() ? "nothing (the finish call itself is missing)"
                                            : enumerate_names(tensors, kNamedTensors)
                        ),
      "look at what these ranks do (py-spy, gradsyncd status); raise the timeout when the step is just long"
  );
  error.ranks = missing;
  tensors.resize(std::min(tensors.size(), kNamedTensors));
  error.tensors = std::move(tensors);
  error.step = waiting_longest->ask->step;
  error.waited_s = waited_s;
  return fail(std::move(error));
}

}  // namespace gradsync::engine
