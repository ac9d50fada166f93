#include "device/host/host_passes.hpp"

#include "device/device_error.hpp"
#include "device/host/bucket_reduction.hpp"
#include "device/host/gradient_scaling.hpp"
#include "device/math/chunk_reference.hpp"
#include "device/transfer/node_contributions.hpp"

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
    if (counted == sums.size() || !is_counted(index, part, counted)) {
      return;  // no rank contributed to it, or another node counts it: its sum is 0 on any scale
    }
    const plan::DType dtype = plan_.bucket_of(part.tensor).dtype;
    const std::byte* values = plan_.output(chunk, sums[counted].destinations[0], plan::size_of(dtype));
    plan_.attempt().chunk_stats[index].power_sum = power_sum(
        dtype, values, chunk.count(), plan_.layout().norm_type, plan_.attempt().tensors[part.tensor].sum.scale
    );
  }

 private:
  /// Over nodes: whether this chunk is the one that has the statistics of the counted sum.
  [[nodiscard]] bool is_counted(std::uint32_t index, const LanePart& part, std::uint32_t sum) const {
    const NodePlan* nodes = plan_.nodes();
    if (nodes == nullptr) {
      return true;
    }
    const SumPlace place = index < nodes->first_counted ? SumPlace::Here : SumPlace::Travels;
    return nodes->places[part.sums][sum] == place &&
           known_of(plan_, plan_.table().chunks[index].part, sum) == SumKnown::Contributed;
  }

  LoadedPlan& plan_;
  const std::atomic<bool>& cancel_;
};

}  // namespace

void HostPasses::reduce(LoadedPlan& plan, const ReduceBucket& command) const {
  reduce_on_host(plan, command, pool_, cancel_);
  throw_if_cancelled();
}

void HostPasses::sum_again(LoadedPlan& plan) const {
  Rescaling rescaling(plan, cancel_);
  pool_.run(static_cast<std::uint32_t>(plan.attempt().rescaled_chunks.size()), rescaling);
  throw_if_cancelled();
}

double HostPasses::multiply(LoadedPlan& plan, const std::vector<plan::ClipOutcome>& outcomes, Copies copies) const {
  return multiply_gradients(plan, outcomes, copies, pool_, cancel_);
}

double HostPasses::write_deferred(LoadedPlan& plan) const { return device::write_deferred(plan, pool_, cancel_); }

void HostPasses::throw_if_cancelled() const {
  if (cancel_.load(std::memory_order_relaxed)) {
    throw DeviceError("aborted", DeviceError::Kind::Aborted);
  }
}

}  // namespace gradsync::device
