#include "device/step_finish.hpp"

#include "base/clock.hpp"
#include "device/device_error.hpp"
#include "device/norm_totals.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace gradsync::device {

namespace {

/// Multiplies every held gradient of the clip groups that ask for it, on every rank: the clip set is not the norm set.
class Scaling final : public PoolJob {
 public:
  /// Whether the ranks of a reduced group still hold the equal bits that the reduction gave them. Not once the trainers
  /// have had the gradients back in between.
  enum class Copies { Equal, OwnedByRanks };

  Scaling(
      LoadedPlan& plan, const std::vector<plan::ClipOutcome>& outcomes, Copies copies, const std::atomic<bool>& cancel
  )
      : plan_(plan), outcomes_(outcomes), copies_(copies), cancel_(cancel) {}

  [[nodiscard]] std::uint32_t tasks() const {
    return needed() ? static_cast<std::uint32_t>(plan_.table().tasks.size()) : 0;
  }

  void run_task(std::uint32_t task, std::size_t worker) noexcept override {
    const ChunkRange range = plan_.table().tasks[task];
    for (std::uint32_t index = range.begin; index < range.end; ++index) {
      if (cancel_.load(std::memory_order_relaxed)) {
        return;
      }
      const Chunk& chunk = plan_.table().chunks[index];
      const plan::ClipOutcome& outcome = outcomes_[plan_.layout().tensors[chunk.tensor].clip_group];
      if (changes(outcome) && !plan_.tensors[chunk.tensor].absent) {
        scale(chunk, outcome.multiplier, plan_.pointers[worker].destinations);
      }
    }
  }

 private:
  // Multiplying by exactly 1 leaves every bit as it is: after a reduction no NaN is left that it could quiet.
  static bool changes(const plan::ClipOutcome& outcome) { return outcome.multiply && outcome.multiplier != 1; }

  [[nodiscard]] bool needed() const { return std::any_of(outcomes_.begin(), outcomes_.end(), changes); }

  void scale(const Chunk& chunk, double multiplier, std::vector<void*>& destinations) const {
    const LaneBucket& bucket = plan_.bucket_of(chunk.tensor);
    for (const auto& group : bucket.groups) {
      if (!plan_.contributed(chunk.tensor, group)) {
        continue;
      }
      destinations.clear();
      for (const std::int64_t rank : group) {
        destinations.push_back(plan_.address(chunk, rank));
      }
      if (copies_ == Copies::Equal) {
        scale_chunk(bucket.dtype, destinations[0], destinations, chunk.count, multiplier);
        continue;
      }
      for (void* const& copy : destinations) {
        scale_chunk(bucket.dtype, copy, {&copy, 1}, chunk.count, multiplier);
      }
    }
  }

  LoadedPlan& plan_;
  const std::vector<plan::ClipOutcome>& outcomes_;
  Copies copies_;
  const std::atomic<bool>& cancel_;
};

/// Seconds the pass took; 0 where none was needed.
double scale_all(
    LoadedPlan& plan,
    const std::vector<plan::ClipOutcome>& outcomes,
    Scaling::Copies copies,
    WorkerPool& pool,
    const std::atomic<bool>& cancel
) {
  Scaling scaling(plan, outcomes, copies, cancel);
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

void check_reduced(const LoadedPlan& plan, Tag tag) {
  for (std::size_t bucket = 0; bucket < plan.buckets.size(); ++bucket) {
    if (plan.buckets[bucket].reduced != tag) {
      throw DeviceError(
          fmt::format("bucket {} does not hold the sums of attempt {}: a norm of it would be wrong", bucket, tag)
      );
    }
  }
  check_unapplied(plan.applied, tag);
}

void combine_norms(const LoadedPlan& plan, const FinishStep& command, StepMath& math) {
  const LanePlan& layout = plan.layout();
  NormTotals totals(layout.norm_type, layout.clip_groups, layout.layers);
  for (std::size_t index = 0; index < plan.tensors.size(); ++index) {
    const LaneTensor& tensor = layout.tensors[index];
    const TensorState& state = plan.tensors[index];
    if (!state.absent) {
      totals.add(state.sum, tensor.clip_group, tensor.layer);
      math.counted_elements += tensor.numel;
    }
  }
  totals.write(command.rules, command.scale, math);
}

void report_ranks(const LoadedPlan& plan, std::uint32_t index, StepMath& math) {
  NonfiniteFinding nonfinite{index, plan.tensors[index].sum.nonfinite, {}};
  DivergenceFinding divergence{index, {}};
  for (std::int64_t rank = 0; rank < plan.layout().world_size; ++rank) {
    const std::size_t slot = plan.slot(index, rank);
    if (const std::uint64_t inputs = plan.nonfinite[slot].load(std::memory_order_relaxed); inputs != 0) {
      nonfinite.inputs.emplace_back(rank, inputs);
    }
    if (plan.differs[slot].load(std::memory_order_relaxed) != 0) {
      divergence.ranks.push_back(rank);
    }
  }
  if ((nonfinite.count != 0 || !nonfinite.inputs.empty()) && math.nonfinite.size() < kMaxFindings) {
    math.nonfinite.push_back(std::move(nonfinite));
  }
  if (!divergence.ranks.empty() && math.divergence.size() < kMaxFindings) {
    math.divergence.push_back(std::move(divergence));
  }
}

void report_findings(const LoadedPlan& plan, StepMath& math) {
  for (std::uint32_t index = 0; index < plan.tensors.size(); ++index) {
    if (plan.tensors[index].absent) {
      math.absent.push_back(index);
      continue;
    }
    const std::uint64_t count = plan.tensors[index].sum.nonfinite;
    math.nonfinite_total += count;
    if (count != 0 || plan.flagged[index].load(std::memory_order_relaxed) != 0) {
      report_ranks(plan, index, math);
    }
  }
}

}  // namespace

StepMath finish_step(LoadedPlan& plan, const FinishStep& command, WorkerPool& pool, const std::atomic<bool>& cancel) {
  check_reduced(plan, command.tag);
  check_rules(command, plan.layout().clip_groups);
  const auto start = std::chrono::steady_clock::now();
  StepMath math;
  combine_norms(plan, command, math);
  report_findings(plan, math);
  math.norm_s = seconds(std::chrono::steady_clock::now() - start);
  if (command.apply) {
    plan.applied = command.tag;  // before the pass: an aborted one must not be repeated either
    math.clip_s = scale_all(plan, math.groups, Scaling::Copies::Equal, pool, cancel);
  } else {
    plan.measured = command.tag;
  }
  return math;
}

double scale_gradients(
    LoadedPlan& plan, const ScaleGradients& command, WorkerPool& pool, const std::atomic<bool>& cancel
) {
  check_reduced(plan, command.tag);
  check_measured(plan.measured, command.tag);
  check_outcomes(command, plan.layout().clip_groups);
  plan.applied = command.tag;
  return scale_all(plan, command.outcomes, Scaling::Copies::OwnedByRanks, pool, cancel);
}

}  // namespace gradsync::device
