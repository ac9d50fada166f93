#include "device/transfer/node_outputs.hpp"

#include "base/clock.hpp"
#include "device/device_error.hpp"
#include "device/transfer/node_contributions.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>

namespace gradsync::device {

namespace {

/// Calls `take` with the outputs of a task, until `cancel` is raised.
template <typename Take>
void for_each_held(const NodePlan& nodes, std::uint32_t task, const std::atomic<bool>& cancel, Take take) {
  const ChunkRange range = nodes.held_tasks[task];
  for (std::uint32_t at = range.begin; at < range.end && !cancel.load(std::memory_order_relaxed); ++at) {
    take(nodes.held[at]);
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
    for_each_held(*plan_.nodes(), tasks_.begin + task, cancel_, [&](const Chunk& chunk) { compare(chunk); });
  }

 private:
  void compare(const Chunk& chunk) {
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
    for_each_held(*plan_.nodes(), task, cancel_, [&](const Chunk& chunk) { finish(chunk); });
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

/// A part is counted by its first sum. Where nobody contributed to that, others may have contributed to another one,
/// which need not be known here: then the norm would leave the part out.
bool may_be_left_out(const LoadedPlan& plan, std::uint32_t number) {
  const LanePart& part = plan.layout().parts[number];
  const std::size_t sums = plan.sums_of(part).size();
  if (!plan.attempt().tensors[part.tensor].incomplete || part.elements == 0 || plan.nodes()->all_here[part.sums] ||
      known_of(plan, number, 0) != SumKnown::Empty) {
    return false;
  }
  bool all_empty = true;
  for (std::size_t sum = 1; sum < sums; ++sum) {
    all_empty = all_empty && known_of(plan, number, sum) == SumKnown::Empty;
  }
  return !all_empty;
}

void check_all_counted(const LoadedPlan& plan, const std::vector<std::uint32_t>& absent) {
  for (std::uint32_t number = 0; number < plan.layout().parts.size(); ++number) {
    const std::uint32_t tensor = plan.layout().parts[number].tensor;
    if (may_be_left_out(plan, number) && !std::ranges::binary_search(absent, tensor)) {
      throw DeviceError(
          fmt::format(
              "no rank contributed to the sum of tensor {} that the norm counts, and some did to the tensor: the norm "
              "would leave it out",
              tensor
          ),
          "replicas have to use the same tensors in a step"
      );
    }
  }
}

}  // namespace

void compare_results(LoadedPlan& plan, std::uint32_t bucket, WorkerPool& pool, const std::atomic<bool>& cancel) {
  Comparison comparison(plan, bucket, cancel);
  pool.run(comparison.tasks(), comparison);
}

double scale_outputs(
    LoadedPlan& plan, const ScaleGradients& command, WorkerPool& pool, const std::atomic<bool>& cancel
) {
  check_all_counted(plan, command.absent);
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
