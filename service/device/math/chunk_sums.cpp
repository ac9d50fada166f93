#include "device/math/chunk_sums.hpp"

#include "device/math/chunk_reference.hpp"
#include "device/math/norm_sum.hpp"

#include <algorithm>

namespace gradsync::device {

namespace {

/// Takes the sums of some chunks again, divided by a scale. Rare, so a plain loop over each.
class Rescaling final : public PoolJob {
 public:
  Rescaling(LoadedPlan& plan, const std::atomic<bool>& cancel) : plan_(plan), cancel_(cancel) {}

  void run_task(std::uint32_t task, std::size_t /*worker*/) noexcept override {
    if (cancel_.load(std::memory_order_relaxed)) {
      return;
    }
    const std::uint32_t index = plan_.attempt().rescaled_chunks[task];
    const Chunk& chunk = plan_.table().chunks[index];
    const LanePart& part = plan_.part_of(chunk);
    const std::vector<LaneSum>& sums = plan_.sums_of(part);
    const std::uint32_t counted = plan_.attempt().parts[chunk.part].counted_sum;
    if (counted == sums.size()) {
      return;  // no rank contributed to it: its sum is 0 on any scale
    }
    const plan::DType dtype = plan_.bucket_of(part.tensor).dtype;
    const std::byte* values = plan_.output(chunk, sums[counted].destinations[0], plan::size_of(dtype));
    plan_.attempt().chunk_stats[index].power_sum = power_sum(
        dtype, values, chunk.count(), plan_.layout().norm_type, plan_.attempt().tensors[part.tensor].sum.scale
    );
  }

 private:
  LoadedPlan& plan_;
  const std::atomic<bool>& cancel_;
};

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

void combine_chunks(LoadedPlan& plan, const LaneBucket& bucket, WorkerPool& pool, const std::atomic<bool>& cancel) {
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
  Rescaling rescaling(plan, cancel);
  pool.run(static_cast<std::uint32_t>(plan.attempt().rescaled_chunks.size()), rescaling);
  if (cancel.load(std::memory_order_relaxed)) {
    return;
  }
  for (const std::uint32_t tensor : bucket.tensors) {
    if (plan.attempt().tensors[tensor].sum.scale != 1) {
      add_up_powers(plan, tensor);
    }
  }
}

}  // namespace gradsync::device
