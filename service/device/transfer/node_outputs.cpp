#include "device/transfer/node_outputs.hpp"

#include "base/clock.hpp"
#include "base/text/hash.hpp"
#include "device/device_error.hpp"
#include "device/step/bucket_step.hpp"
#include "device/transfer/node_contributions.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>

namespace gradsync::device {

namespace {

/// Calls `take` with the number of each output of a task, until `cancel` is raised.
template <typename Take>
void for_each_held(const NodePlan& nodes, std::uint32_t task, const std::atomic<bool>& cancel, Take take) {
  const ChunkRange range = nodes.held_tasks[task];
  for (std::uint32_t at = range.begin; at < range.end && !cancel.load(std::memory_order_relaxed); ++at) {
    take(at);
  }
}

class Comparison final : public PoolJob {
 public:
  Comparison(LoadedPlan& plan, std::uint32_t bucket, const std::atomic<bool>& cancel)
      : plan_(plan),
        width_(plan::size_of(plan.layout().buckets[bucket].dtype)),
        tasks_(plan.nodes()->buckets[bucket].held_tasks),
        cancel_(cancel) {}

  [[nodiscard]] std::uint32_t tasks() const { return tasks_.end - tasks_.begin; }

  void run_task(std::uint32_t task, std::size_t /*worker*/) noexcept override {
    for_each_held(*plan_.nodes(), tasks_.begin + task, cancel_, [&](std::uint32_t at) { compare(at); });
  }

 private:
  void compare(std::uint32_t at) {
    const Chunk& chunk = plan_.nodes()->held[at];
    const LanePart& part = plan_.part_of(chunk);
    const std::vector<LaneSum>& sums = plan_.sums_of(part);
    const std::byte* first = nullptr;
    for (std::size_t sum = 0; sum < sums.size() && sums.size() > 1; ++sum) {
      if (sums[sum].destinations.empty() || known_of(plan_, chunk.part, sum) != SumKnown::Contributed) {
        continue;
      }
      const std::byte* values = plan_.output(chunk, sums[sum].destinations.front(), width_);
      first = first == nullptr ? values : first;
      if (std::memcmp(first, values, chunk.count() * width_) != 0) {
        for (const LaneMember& destination : sums[sum].destinations) {
          plan_.attempt().differs[plan_.slot(part.tensor, destination.rank)].store(1, std::memory_order_relaxed);
        }
        plan_.flag(part.tensor);
      }
    }
    if (first != nullptr && plan_.nodes()->hashed[chunk.part]) {
      plan_.nodes()->attempt.hashes[at] = hash64({reinterpret_cast<const char*>(first), chunk.count() * width_});
    }
  }

  LoadedPlan& plan_;
  std::size_t width_;
  ChunkRange tasks_;
  const std::atomic<bool>& cancel_;
};

bool changes(const plan::ClipOutcome& outcome) {
  return outcome.action == plan::StepAction::Zero || (outcome.multiply && outcome.multiplier != 1);
}

bool holds_back(const plan::ClipOutcome& outcome) {
  return outcome.action == plan::StepAction::Skip || outcome.action == plan::StepAction::Raise;
}

class Scaling final : public PoolJob {
 public:
  Scaling(LoadedPlan& plan, const ScaleGradients& command, const std::atomic<bool>& cancel)
      : plan_(plan), command_(command), cancel_(cancel) {
    multiplies_ = std::ranges::any_of(command.outcomes, changes) && std::ranges::none_of(command.outcomes, holds_back);
  }

  [[nodiscard]] std::uint32_t tasks() const {
    const auto is_marked = [](const BucketState& bucket) { return bucket.marked; };
    const bool needed = multiplies_ || std::ranges::any_of(plan_.attempt().buckets, is_marked);
    return needed ? static_cast<std::uint32_t>(plan_.nodes()->held_tasks.size()) : 0;
  }

  void run_task(std::uint32_t task, std::size_t /*worker*/) noexcept override {
    for_each_held(*plan_.nodes(), task, cancel_, [&](std::uint32_t at) { finish(plan_.nodes()->held[at]); });
  }

 private:
  void finish(const Chunk& chunk) const {
    const std::uint32_t tensor = plan_.part_of(chunk).tensor;
    const bool complete = !plan_.attempt().tensors[tensor].incomplete;
    if (!complete && std::ranges::binary_search(command_.absent, tensor)) {
      return;
    }
    const plan::ClipOutcome& outcome = command_.outcomes[plan_.layout().tensors[tensor].clip_group];
    const bool change = multiplies_ && changes(outcome);
    const std::vector<LaneSum>& sums = plan_.sums_of(plan_.part_of(chunk));
    for (std::size_t sum = 0; sum < sums.size() && (change || !complete); ++sum) {
      if (sums[sum].destinations.empty()) {
        continue;
      }
      const bool contributed = complete || known_of(plan_, chunk.part, sum) == SumKnown::Contributed;
      if (!contributed || (change && outcome.action == plan::StepAction::Zero)) {
        write(chunk, sums[sum], nullptr);
      } else if (change) {
        write(chunk, sums[sum], &outcome.multiplier);
      }
    }
  }

  /// Zeros are written and not multiplied, because NaN times 0 is NaN. Ranks may have changed their copies.
  void write(const Chunk& chunk, const LaneSum& sum, const double* multiplier) const {
    const plan::DType dtype = plan_.bucket_of(plan_.part_of(chunk).tensor).dtype;
    const std::size_t width = plan::size_of(dtype);
    for (const LaneMember& destination : sum.destinations) {
      void* const values = plan_.output(chunk, destination, width);
      if (multiplier == nullptr) {
        std::memset(values, 0, chunk.count() * width);
      } else {
        scale_chunk(dtype, values, {&values, 1}, chunk.count(), *multiplier);
      }
    }
  }

  LoadedPlan& plan_;
  const ScaleGradients& command_;
  const std::atomic<bool>& cancel_;
  bool multiplies_ = false;
};

}  // namespace

void compare_results(LoadedPlan& plan, std::uint32_t bucket, WorkerPool& pool, const std::atomic<bool>& cancel) {
  Comparison comparison(plan, bucket, cancel);
  pool.run(comparison.tasks(), comparison);
}

void end_node_bucket(
    LoadedPlan& plan,
    const ReduceBucket& command,
    WorkerPool& pool,
    const StepPasses& passes,
    const std::atomic<bool>& cancel
) {
  compare_contributions(plan, command.bucket);
  if (command.compare) {
    compare_results(plan, command.bucket, pool, cancel);
    passes.throw_if_cancelled();
  }
  plan.nodes()->attempt.compared[command.bucket] = command.compare;
  end_bucket(plan, command, passes);
}

double scale_outputs(
    LoadedPlan& plan, const ScaleGradients& command, WorkerPool& pool, const std::atomic<bool>& cancel
) {
  Scaling scaling(plan, command, cancel);
  if (scaling.tasks() == 0) {
    return 0;
  }
  const auto start = std::chrono::steady_clock::now();
  pool.run(scaling.tasks(), scaling);
  if (cancel.load(std::memory_order_relaxed)) {
    throw DeviceError("aborted", DeviceError::Kind::Aborted);
  }
  return seconds(std::chrono::steady_clock::now() - start);
}

}  // namespace gradsync::device
