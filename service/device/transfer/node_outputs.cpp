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
  Comparison(LoadedPlan& plan, std::uint32_t bucket, OutputReader& outputs, const std::atomic<bool>& cancel)
      : plan_(plan),
        outputs_(outputs),
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
      const std::byte* values = outputs_.read(plan_, chunk, sums[sum].destinations.front(), width_);
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
  OutputReader& outputs_;
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
      : plan_(plan), command_(command), scaling_(plan, command), cancel_(cancel) {}

  [[nodiscard]] std::uint32_t tasks() const {
    return scaling_.needed() ? static_cast<std::uint32_t>(plan_.nodes()->held_tasks.size()) : 0;
  }

  void run_task(std::uint32_t task, std::size_t /*worker*/) noexcept override {
    for_each_held(*plan_.nodes(), task, cancel_, [&](std::uint32_t at) { finish(plan_.nodes()->held[at]); });
  }

 private:
  void finish(const Chunk& chunk) const {
    const std::vector<LaneSum>& sums = plan_.sums_of(plan_.part_of(chunk));
    for (std::size_t sum = 0; sum < sums.size(); ++sum) {
      if (sums[sum].destinations.empty()) {
        continue;
      }
      const OutputScaling::Change change = scaling_.of(chunk.part, sum);
      if (change != OutputScaling::Change::None) {
        write(chunk, sums[sum], change);
      }
    }
  }

  /// Ranks may have changed their copies.
  void write(const Chunk& chunk, const LaneSum& sum, OutputScaling::Change change) const {
    const LaneTensor& tensor = plan_.layout().tensors[plan_.part_of(chunk).tensor];
    const plan::DType dtype = plan_.layout().buckets[tensor.bucket].dtype;
    const std::size_t width = plan::size_of(dtype);
    for (const LaneMember& destination : sum.destinations) {
      void* const values = plan_.output(chunk, destination, width);
      if (change == OutputScaling::Change::Zeros) {
        std::memset(values, 0, chunk.count() * width);
      } else {
        scale_chunk(dtype, values, {&values, 1}, chunk.count(), command_.outcomes[tensor.clip_group].multiplier);
      }
    }
  }

  LoadedPlan& plan_;
  const ScaleGradients& command_;
  OutputScaling scaling_;
  const std::atomic<bool>& cancel_;
};

}  // namespace

OutputScaling::OutputScaling(const LoadedPlan& plan, const ScaleGradients& command) : plan_(plan), command_(command) {
  const auto is_marked = [](const BucketState& bucket) { return bucket.marked; };
  multiplies_ = std::ranges::any_of(command.outcomes, changes) && std::ranges::none_of(command.outcomes, holds_back);
  needed_ = multiplies_ || std::ranges::any_of(plan.attempt().buckets, is_marked);
}

OutputScaling::Change OutputScaling::of(std::uint32_t part, std::size_t sum) const {
  const std::uint32_t tensor = plan_.layout().parts[part].tensor;
  const bool complete = !plan_.attempt().tensors[tensor].incomplete;
  if (!complete && std::ranges::binary_search(command_.absent, tensor)) {
    return Change::None;
  }
  if (!complete && known_of(plan_, part, sum) != SumKnown::Contributed) {
    return Change::Zeros;
  }
  const plan::ClipOutcome& outcome = command_.outcomes[plan_.layout().tensors[tensor].clip_group];
  if (!multiplies_ || !changes(outcome)) {
    return Change::None;
  }
  return outcome.action == plan::StepAction::Zero ? Change::Zeros : Change::Multiply;
}

void compare_results(
    LoadedPlan& plan, std::uint32_t bucket, OutputReader& outputs, WorkerPool& pool, const std::atomic<bool>& cancel
) {
  Comparison comparison(plan, bucket, outputs, cancel);
  pool.run(comparison.tasks(), comparison);
}

void end_node_bucket(LoadedPlan& plan, const ReduceBucket& command, NodePasses& nodes, const StepPasses& passes) {
  compare_contributions(plan, command.bucket);
  if (command.compare) {
    nodes.compare_results(plan, command.bucket);
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
