#include "device/gradient_scaling.hpp"

#include "base/clock.hpp"
#include "device/device_error.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>

namespace gradsync::device {

namespace {

class Scaling final : public PoolJob {
 public:
  Scaling(
      LoadedPlan& plan, const std::vector<plan::ClipOutcome>& outcomes, Copies copies, const std::atomic<bool>& cancel
  )
      : plan_(plan), outcomes_(outcomes), copies_(copies), cancel_(cancel) {}

  [[nodiscard]] std::uint32_t tasks() const {
    return needed() ? static_cast<std::uint32_t>(plan_.table().tasks.size()) : 0;
  }

  void run_task(std::uint32_t task, std::size_t worker) noexcept override {
    const ChunkRange range = plan_.table().tasks[task];
    for (std::uint32_t at = range.begin; at < range.end; ++at) {
      if (cancel_.load(std::memory_order_relaxed)) {
        return;
      }
      const Chunk& chunk = plan_.table().chunks[plan_.table().work[at]];
      const std::uint32_t tensor = plan_.part_of(chunk).tensor;
      const plan::ClipOutcome& outcome = outcomes_[plan_.layout().tensors[tensor].clip_group];
      if (!changes(outcome) || plan_.tensors[tensor].absent) {
        continue;
      }
      if (outcome.action == plan::StepAction::Zero) {
        write_zeros(chunk, tensor);
      } else {
        scale(chunk, tensor, outcome.multiplier, plan_.pointers[worker].destinations);
      }
    }
  }

 private:
  // Multiplying by exactly 1 leaves every bit as it is: after a reduction no NaN is left that it could quiet.
  static bool changes(const plan::ClipOutcome& outcome) {
    return outcome.action == plan::StepAction::Zero || (outcome.multiply && outcome.multiplier != 1);
  }

  static bool holds_back(const plan::ClipOutcome& outcome) {
    return outcome.action == plan::StepAction::Skip || outcome.action == plan::StepAction::Raise;
  }

  [[nodiscard]] bool needed() const {
    return std::none_of(outcomes_.begin(), outcomes_.end(), holds_back) &&
           std::any_of(outcomes_.begin(), outcomes_.end(), changes);
  }

  /// Written, not multiplied: NaN times 0 is NaN. Where nobody contributed zeros are what the reduction wrote.
  void write_zeros(const Chunk& chunk, std::uint32_t tensor) const {
    const std::size_t width = plan::size_of(plan_.bucket_of(tensor).dtype);
    for (const LaneSum& sum : plan_.sums_of(plan_.part_of(chunk))) {
      for (const LaneMember& destination : sum.destinations) {
        std::memset(plan_.output(chunk, destination, width), 0, chunk.count() * width);
      }
    }
  }

  void scale(const Chunk& chunk, std::uint32_t tensor, double multiplier, std::vector<void*>& destinations) const {
    const plan::DType dtype = plan_.bucket_of(tensor).dtype;
    const std::size_t width = plan::size_of(dtype);
    for (const LaneSum& sum : plan_.sums_of(plan_.part_of(chunk))) {
      if (plan_.tensors[tensor].incomplete && !plan_.contributed(tensor, sum)) {
        continue;
      }
      destinations.clear();
      for (const LaneMember& destination : sum.destinations) {
        destinations.push_back(plan_.output(chunk, destination, width));
      }
      if (copies_ == Copies::Equal) {
        scale_chunk(dtype, destinations[0], destinations, chunk.count(), multiplier);
        continue;
      }
      for (void* const& copy : destinations) {
        scale_chunk(dtype, copy, {&copy, 1}, chunk.count(), multiplier);
      }
    }
  }

  LoadedPlan& plan_;
  const std::vector<plan::ClipOutcome>& outcomes_;
  Copies copies_;
  const std::atomic<bool>& cancel_;
};

}  // namespace

double multiply_gradients(
    LoadedPlan& plan,
    const std::vector<plan::ClipOutcome>& outcomes,
    Copies copies,
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

}  // namespace gradsync::device
