#include "engine/step/step_machine.hpp"

#include "base/text/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

namespace gradsync::engine {

namespace {

Error mismatched_step(std::int64_t rank, std::int64_t step, std::string message, std::string hint) {
  Error error = make_error(ErrorCode::StepMismatch, std::move(message), std::move(hint));
  error.rank = rank;
  error.step = step;
  return error;
}

Error norm_waits_for_clip(std::int64_t rank, std::int64_t step) {
  return mismatched_step(
      rank,
      step,
      fmt::format(
          "rank {} called step.finish, but the norm of step {} was computed and waits for clip.apply", rank, step
      ),
      "call clip.apply on every rank; max_norm null leaves the gradients as they are"
  );
}

Error norm_not_computed(std::int64_t rank, std::int64_t step) {
  return mismatched_step(
      rank,
      step,
      fmt::format("rank {} called clip.apply for step {}, but its norm was not computed", rank, step),
      "call norm.compute on every rank first, or step.finish for both at once"
  );
}

Error norm_of_other_step(std::int64_t rank, std::int64_t step, std::int64_t norm_step) {
  return mismatched_step(
      rank,
      norm_step,
      fmt::format(
          "rank {} called clip.apply for step {}, but the norm that was computed is of step {}", rank, step, norm_step
      ),
      "pass the step that norm.compute was called with"
  );
}

}  // namespace

StepMachine::StepMachine(std::shared_ptr<const plan::Plan> plan, std::uint64_t epoch, LocalRanks locals)
    : plan_(std::move(plan)), locals_(std::move(locals)), epoch_(epoch), unused_(plan_->buckets.size()) {
  for (std::size_t seat = 0; seat < locals_.size(); ++seat) {
    ranks_.push_back(made(locals_.rank_of(seat)));
  }
}

StepMachine::StepMachine(std::shared_ptr<const plan::Plan> plan, std::uint64_t epoch)
    : StepMachine(plan, epoch, LocalRanks::all(plan->world_size)) {}

StepMachine::Rank StepMachine::made(std::int64_t rank) const {
  Rank fresh;
  if (!plan_->layouts.empty()) {
    fresh.layout = &plan_->layout(rank);
    fresh.is_unused.assign(fresh.layout->tensors.size(), false);
  }
  fresh.ready.assign(plan_->buckets.size(), false);
  return fresh;
}

void StepMachine::reseat(LocalRanks locals) {
  std::vector<Rank> ranks;
  asked_ = 0;
  for (std::size_t seat = 0; seat < locals.size(); ++seat) {
    const std::int64_t rank = locals.rank_of(seat);
    const std::optional<std::size_t> before = locals_.seat_of(rank);
    ranks.push_back(before ? std::move(ranks_[*before]) : made(rank));
    asked_ += ranks.back().ask ? 1 : 0;
  }
  ranks_ = std::move(ranks);
  locals_ = std::move(locals);
}

Actions StepMachine::open(const std::vector<LaneShare>& shares) {
  Actions actions;
  if (std::exchange(open_, true)) {
    return actions;
  }
  lane_of_bucket_.resize(plan_->buckets.size());
  for (const LaneShare& share : shares) {
    for (const std::uint32_t bucket : share.buckets) {
      lane_of_bucket_[bucket] = lanes_.size();
    }
    const bool cut = shares.size() > 1 && locals_.alone();
    lanes_.push_back({share.lane, 0, cut ? share.buckets : std::vector<std::uint32_t>()});
  }
  if (!course_.error) {
    launch_ready(actions);
    finish_if_complete(actions);
  }
  return actions;
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

std::optional<Error> StepMachine::disagreement(std::int64_t rank, const Ask& ask) const {
  const std::size_t own = seat(rank);
  for (std::size_t other = 0; other < ranks_.size(); ++other) {
    if (other != own && ranks_[other].ask) {
      if (std::optional<Error> error = mismatch(rank, ask, locals_.rank_of(other), *ranks_[other].ask)) {
        return error;
      }
    }
  }
  return std::nullopt;
}

const std::vector<std::uint32_t>& StepMachine::rows_of(std::size_t seat) const {
  static const std::vector<std::uint32_t> kNone;
  return ranks_[seat].layout == nullptr ? kNone : ranks_[seat].layout->tensors;
}

Error StepMachine::not_held(std::int64_t rank, const char* path, std::uint32_t bucket) {
  return invalid_params(path, fmt::format("rank {} declared no tensor of bucket {}", rank, bucket));
}

bool StepMachine::holds(std::size_t seat, std::uint32_t bucket) const {
  return !ranks_[seat].layout->bucket_rows[bucket].empty();
}

std::optional<Error> StepMachine::bad_index(std::int64_t rank, const FinishRequest& request) const {
  const std::size_t buckets = plan_->buckets.size();
  for (const std::uint32_t bucket : request.ready) {
    if (bucket >= buckets) {
      return invalid_params("ready", fmt::format("bucket {} does not exist: the plan has {}", bucket, buckets));
    }
    if (!holds(seat(rank), bucket)) {
      return not_held(rank, "ready", bucket);
    }
  }
  return bad_unused(rank, "unused", request.unused);
}

void StepMachine::mark_asked(std::int64_t rank_number, const FinishRequest& request) {
  Rank& rank = ranks_[seat(rank_number)];
  mark_unused(rank_number, request.unused);
  rank.micro_batch = request.micro_batch;
  if (request.ready_all) {
    rank.ready.assign(rank.ready.size(), true);
  }
  for (const std::uint32_t bucket : request.ready) {
    rank.ready[bucket] = true;
  }
}

Error StepMachine::not_ready(std::int64_t rank, std::int64_t step, std::vector<std::string> unready) {
  Error error = make_error(
      ErrorCode::NotReady,
      fmt::format(
          "rank {} finishes step {} with tensors neither ready nor unused: {}",
          rank,
          step,
          enumerate_names(unready, kNamedTensors)
      ),
      "report them ready, or unused when they got no gradient, and finish again"
  );
  error.rank = rank;
  error.step = step;
  unready.resize(std::min(unready.size(), kNamedTensors));
  error.tensors = std::move(unready);
  return error;
}

Actions StepMachine::on_finish(
    std::int64_t rank_number, const FinishRequest& request, TimePoint now, TimePoint deadline
) {
  Actions actions;
  if (std::optional<Error> error = stale(rank_number, request.key.attempt)) {
    actions.emplace_back(AnswerRank{rank_number, std::move(*error)});
    return actions;
  }
  Rank& rank = ranks_[seat(rank_number)];
  const Ask ask = make_ask(request, now, deadline);
  if (course_.error) {
    this->ask(rank, ask);  // the attempt is being aborted: this rank gets the error with the others
    return actions;
  }
  if (course_.phase == Phase::Voting) {
    return actions;  // what this rank asked for before is voted on
  }
  if (course_.phase == Phase::NormGiven || course_.phase == Phase::Scaling) {
    return fail_here(norm_waits_for_clip(rank_number, request.step));
  }
  if (std::optional<Error> error = bad_index(rank_number, request)) {
    actions.emplace_back(AnswerRank{rank_number, std::move(*error)});
    return actions;
  }
  mark_asked(rank_number, request);
  if (rank.notification_error) {
    Error error = std::move(*rank.notification_error);
    rank.notification_error.reset();
    this->ask(rank, ask);
    return fail_here(std::move(error));
  }
  if (std::vector<std::string> unready = unready_tensors(rank_number); !unready.empty()) {
    actions.emplace_back(AnswerRank{rank_number, not_ready(rank_number, request.step, std::move(unready))});
    launch_ready(actions);
    return actions;
  }
  if (std::optional<Error> error = disagreement(rank_number, ask)) {
    this->ask(rank, ask);
    return fail_here(std::move(*error));
  }
  this->ask(rank, ask);
  launch_ready(actions);
  finish_if_complete(actions);
  return actions;
}

Actions StepMachine::on_clip(std::int64_t rank_number, const ClipRequest& request, TimePoint now, TimePoint deadline) {
  Actions actions;
  if (std::optional<Error> error = stale(rank_number, request.key.attempt)) {
    actions.emplace_back(AnswerRank{rank_number, std::move(*error)});
    return actions;
  }
  Rank& rank = ranks_[seat(rank_number)];
  const Ask ask = make_ask(request, now, deadline);
  if (course_.error) {
    this->ask(rank, ask);
    return actions;
  }
  if (course_.phase == Phase::Voting) {
    return actions;
  }
  if (course_.phase != Phase::NormGiven) {
    actions.emplace_back(AnswerRank{rank_number, norm_not_computed(rank_number, request.step)});
    return actions;
  }
  if (request.step != norm_.step) {
    actions.emplace_back(AnswerRank{rank_number, norm_of_other_step(rank_number, request.step, norm_.step)});
    return actions;
  }
  std::optional<Error> error = disagreement(rank_number, ask);
  this->ask(rank, ask);
  if (error) {
    return fail_here(std::move(*error));
  }
  if (all_waiting()) {
    agree(actions);
  }
  return actions;
}

bool StepMachine::importing() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
    return rank.ask && rank.ask->kind == Ask::Kind::Import;
  });
}

Actions StepMachine::on_import(
    std::int64_t rank_number, const ImportRequest& request, TimePoint now, TimePoint deadline
) {
  Actions actions;
  if (std::optional<Error> error = stale(rank_number, request.key.attempt)) {
    actions.emplace_back(AnswerRank{rank_number, std::move(*error)});
    return actions;
  }
  Rank& rank = ranks_[seat(rank_number)];
  const Ask ask = make_ask(request, now, deadline);
  if (course_.error) {
    this->ask(rank, ask);
    return actions;
  }
  if (course_.phase == Phase::Voting) {
    return actions;
  }
  const bool some_ready = std::find(rank.ready.begin(), rank.ready.end(), true) != rank.ready.end();
  if (course_.phase != Phase::Collecting || course_.next_launch > 0 || some_ready) {
    Error error = make_error(
        ErrorCode::StepMismatch,
        fmt::format("rank {} called policy.import in the middle of a step", rank_number),
        "finish the step first, or import before its first gradient is ready"
    );
    error.rank = rank_number;
    actions.emplace_back(AnswerRank{rank_number, std::move(error)});
    return actions;
  }
  std::optional<Error> error = disagreement(rank_number, ask);
  this->ask(rank, ask);
  if (error) {
    return fail_here(std::move(*error));
  }
  finish_if_complete(actions);
  return actions;
}

std::vector<std::string> StepMachine::unready_tensors(std::int64_t rank_number) const {
  const Rank& rank = ranks_[seat(rank_number)];
  std::vector<std::string> names;
  for (std::size_t bucket = 0; bucket < plan_->buckets.size(); ++bucket) {
    if (rank.ready[bucket]) {
      continue;
    }
    for (const std::uint32_t row : rank.layout->bucket_rows[bucket]) {
      if (!rank.is_unused[row]) {
        names.push_back(plan_->tensors[rank.layout->tensors[row]].declaration.name);
      }
    }
  }
  return names;
}

bool StepMachine::ready_here(std::uint32_t bucket) const {
  bool held = false;
  for (std::size_t seat = 0; seat < ranks_.size(); ++seat) {
    const bool holder = holds(seat, bucket);
    // A bucket whose tensors are all unused needs no message of its own.
    if (holder && !ranks_[seat].ready[bucket] && !ranks_[seat].ask) {
      return false;
    }
    held = held || holder;
  }
  return held || begun();  // one that other nodes alone have is no sign that a step begins
}

// Buckets become ready in any order and leave in plan order: every rank must see the same collectives.
void StepMachine::launch_ready(Actions& actions) {
  while (open_ && !importing() && course_.next_launch < plan_->buckets.size()) {
    const auto bucket = static_cast<std::uint32_t>(course_.next_launch);
    if (!ready_here(bucket)) {
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
    launch.defer = !shared() && locals_.alone() && multiplied_in_a_row_ >= kMultipliedBefore;
    ++course_.next_launch;
    if (!is_sites()) {
      launch.lane = launch_on(lanes_[lane_of_bucket_[bucket]]);
      actions.emplace_back(std::move(launch));
      continue;
    }
    for (LaneWork& work : lanes_) {
      launch.lane = launch_on(work);
      actions.emplace_back(launch);
    }
  }
}

void StepMachine::finish_if_complete(Actions& actions) {
  if (!open_ || course_.phase != Phase::Collecting || course_.error || !all_waiting()) {
    return;
  }
  if (importing()) {
    agree(actions);
    return;
  }
  // Behind the last bucket in the lane's queue, not after its report: the lane takes commands in order and refuses a
  // norm of buckets that are not reduced, so that two threads need not wake each other once more.
  if (course_.next_launch < plan_->buckets.size()) {
    return;
  }
  course_.phase = Phase::Finishing;
  launch_norm(*ranks_.front().ask, actions);
}

}  // namespace gradsync::engine
