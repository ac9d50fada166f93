#include "device/step/chunk_sums.hpp"

#include "device/math/norm_sum.hpp"

#include <algorithm>

namespace gradsync::device {

namespace {

void add_up_powers(LoadedPlan& plan, std::uint32_t tensor) {
  const ChunkRange range = plan.table().of_tensor[tensor];
  DoubleDouble& sum = plan.attempt().tensors[tensor].sum.power_sum;
  sum = {};
  for (std::uint32_t chunk = range.begin; chunk < range.end; ++chunk) {
    sum = sum + plan.attempt().chunk_stats[chunk].power_sum;
  }
}

void combine_tensor(LoadedPlan& plan, std::uint32_t tensor) {
  TensorSum& sum = plan.attempt().tensors[tensor].sum;
  sum = {};
  const ChunkRange range = plan.table().of_tensor[tensor];
  for (std::uint32_t chunk = range.begin; chunk < range.end; ++chunk) {
    const ChunkStats& stats = plan.attempt().chunk_stats[chunk];
    sum.maximum = std::max(sum.maximum, stats.maximum);
    sum.nonfinite += stats.nonfinite;
    sum.nan += stats.nan;
  }
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
      const ChunkRange range = plan.table().of_tensor[tensor];
      for (std::uint32_t chunk = range.begin; chunk < range.end; ++chunk) {
        plan.attempt().rescaled_chunks.push_back(chunk);
      }
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
