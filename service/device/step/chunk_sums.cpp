#include "device/step/chunk_sums.hpp"

#include "device/math/norm_sum.hpp"

#include <algorithm>

namespace gradsync::device {

namespace {

/// Calls `take` with each chunk of a tensor whose statistics are made here: first those of sums that are made here as a
/// whole, then those of blocks.
template <typename Take>
void for_each_chunk(const LoadedPlan& plan, std::uint32_t tensor, Take take) {
  const ChunkRange range = plan.table().of_tensor[tensor];
  for (std::uint32_t chunk = range.begin; chunk < range.end; ++chunk) {
    take(chunk);
  }
  if (plan.nodes() != nullptr) {
    const ChunkRange counted = plan.nodes()->counted[tensor];
    for (std::uint32_t chunk = counted.begin; chunk < counted.end; ++chunk) {
      take(chunk);
    }
  }
}

void add_up_powers(LoadedPlan& plan, std::uint32_t tensor) {
  DoubleDouble sum;
  for_each_chunk(plan, tensor, [&](std::uint32_t chunk) { sum = sum + plan.attempt().chunk_stats[chunk].power_sum; });
  plan.attempt().tensors[tensor].sum.power_sum = sum;
}

void combine_tensor(LoadedPlan& plan, std::uint32_t tensor) {
  TensorSum& sum = plan.attempt().tensors[tensor].sum;
  sum = {};
  for_each_chunk(plan, tensor, [&](std::uint32_t chunk) {
    const ChunkStats& stats = plan.attempt().chunk_stats[chunk];
    sum.maximum = std::max(sum.maximum, stats.maximum);
    sum.nonfinite += stats.nonfinite;
    sum.nan += stats.nan;
  });
  add_up_powers(plan, tensor);
}

}  // namespace

void combine_chunks(LoadedPlan& plan, const LaneBucket& bucket, const StepPasses& passes) {
  const double p = plan.layout().norm_type;
  plan.attempt().rescaled_chunks.clear();
  for (const std::uint32_t tensor : bucket.tensors) {
    combine_tensor(plan, tensor);
    TensorSum& sum = plan.attempt().tensors[tensor].sum;
    if (needs_rescaling(sum, p)) {
      sum.scale = rescaling_divisor(sum.maximum, p);
      for_each_chunk(plan, tensor, [&](std::uint32_t chunk) { plan.attempt().rescaled_chunks.push_back(chunk); });
    }
  }
  if (plan.attempt().rescaled_chunks.empty()) {
    return;
  }
  passes.sum_again(plan);
  for (const std::uint32_t tensor : bucket.tensors) {
    if (plan.attempt().tensors[tensor].sum.scale != 1) {
      add_up_powers(plan, tensor);
    }
  }
}

}  // namespace gradsync::device
