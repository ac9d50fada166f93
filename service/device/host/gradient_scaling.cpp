#include "device/host/gradient_scaling.hpp"

#include "base/clock.hpp"
#include "device/device_error.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>

namespace gradsync::device {

namespace {

/// Copies what the reduction deferred, multiplies, or both in one.
class FinalPass final : public PoolJob {
 public:
  /// Without `outcomes` it only copies.
  FinalPass(
      LoadedPlan& plan, const std::vector<plan::ClipOutcome>* outcomes, Copies copies, const std::atomic<bool>& cancel
  )
      : plan_(plan),
        outcomes_(outcomes),
        copies_(copies),
        stores_(plan.fits_caches() ? Stores::Cached : Stores::PastCache),
        cancel_(cancel) {
    if (outcomes_ != nullptr && std::any_of(outcomes_->begin(), outcomes_->end(), holds_back)) {
      outcomes_ = nullptr;
    }
  }

  [[nodiscard]] std::uint32_t tasks() const {
    const auto deferred = [](const BucketState& bucket) { return bucket.deferred; };
    const bool needed = (outcomes_ != nullptr && std::any_of(outcomes_->begin(), outcomes_->end(), changes)) ||
                        std::any_of(plan_.attempt().buckets.begin(), plan_.attempt().buckets.end(), deferred);
    return needed ? static_cast<std::uint32_t>(plan_.table().tasks.size()) : 0;
  }

  void run_task(std::uint32_t task, std::size_t worker) noexcept override {
    const ChunkRange range = plan_.table().tasks[task];
    for (std::uint32_t at = range.begin; at < range.end; ++at) {
      if (cancel_.load(std::memory_order_relaxed)) {
        break;
      }
      const Chunk& chunk = plan_.table().chunks[plan_.table().work[at]];
      const std::uint32_t tensor = plan_.part_of(chunk).tensor;
      const BucketState& bucket = plan_.attempt().buckets[plan_.layout().tensors[tensor].bucket];
      const bool here = outcomes_ == nullptr || bucket.reduced == plan_.attempt().applied;  // not on another lane
      if (here && (!bucket.marked || !plan_.attempt().tensors[tensor].absent)) {
        finish(chunk, tensor, bucket, plan_.attempt().pointers[worker].destinations);
      }
    }
    if (stores_ == Stores::PastCache) {
      fence_stores();
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

  void finish(const Chunk& chunk, std::uint32_t tensor, const BucketState& bucket, std::vector<void*>& destinations)
      const {
    const plan::ClipOutcome* outcome =
        outcomes_ == nullptr ? nullptr : &(*outcomes_)[plan_.layout().tensors[tensor].clip_group];
    if (outcome != nullptr && outcome->action == plan::StepAction::Zero) {
      write_zeros(chunk, tensor);
      return;
    }
    const bool multiply = outcome != nullptr && changes(*outcome);
    for (const LaneSum& sum : plan_.sums_of(plan_.part_of(chunk))) {
      if (multiply &&
          (!bucket.marked || !plan_.attempt().tensors[tensor].incomplete || plan_.contributed(tensor, sum))) {
        scale(chunk, tensor, sum, outcome->multiplier, destinations);
      } else if (bucket.deferred) {
        copy(chunk, tensor, sum);
      }
    }
  }

  /// From the first destination, which has the sum.
  void copy(const Chunk& chunk, std::uint32_t tensor, const LaneSum& sum) const {
    const std::size_t width = plan::size_of(plan_.bucket_of(tensor).dtype);
    for (std::size_t destination = 1; destination < sum.destinations.size(); ++destination) {
      std::memcpy(
          plan_.output(chunk, sum.destinations[destination], width),
          plan_.output(chunk, sum.destinations[0], width),
          chunk.count() * width
      );
    }
  }

  /// Zeros are written and not multiplied, because NaN times 0 is NaN. Where no rank contributed the reduction wrote
  /// zeros already.
  void write_zeros(const Chunk& chunk, std::uint32_t tensor) const {
    const std::size_t width = plan::size_of(plan_.bucket_of(tensor).dtype);
    for (const LaneSum& sum : plan_.sums_of(plan_.part_of(chunk))) {
      for (const LaneMember& destination : sum.destinations) {
        std::memset(plan_.output(chunk, destination, width), 0, chunk.count() * width);
      }
    }
  }

  void scale(
      const Chunk& chunk, std::uint32_t tensor, const LaneSum& sum, double multiplier, std::vector<void*>& destinations
  ) const {
    const plan::DType dtype = plan_.bucket_of(tensor).dtype;
    const std::size_t width = plan::size_of(dtype);
    destinations.clear();
    for (const LaneMember& destination : sum.destinations) {
      destinations.push_back(plan_.output(chunk, destination, width));
    }
    if (copies_ == Copies::Equal) {
      scale_chunk(dtype, destinations[0], destinations, chunk.count(), multiplier, stores_);
      return;
    }
    for (void* const& copy : destinations) {
      scale_chunk(dtype, copy, {&copy, 1}, chunk.count(), multiplier);
    }
  }

  LoadedPlan& plan_;
  const std::vector<plan::ClipOutcome>* outcomes_;  ///< null: nothing is multiplied
  Copies copies_;
  Stores stores_;
  const std::atomic<bool>& cancel_;
};

/// Seconds it took.
double run(FinalPass pass, LoadedPlan& plan, WorkerPool& pool, const std::atomic<bool>& cancel) {
  if (pass.tasks() == 0) {
    return 0;
  }
  const auto start = std::chrono::steady_clock::now();
  pool.run(pass.tasks(), pass);
  if (cancel.load(std::memory_order_relaxed)) {
    throw DeviceError("aborted", DeviceError::Kind::Aborted);
  }
  for (BucketState& bucket : plan.attempt().buckets) {
    bucket.deferred = false;
  }
  return seconds(std::chrono::steady_clock::now() - start);
}

}  // namespace

double multiply_gradients(
    LoadedPlan& plan,
    const std::vector<plan::ClipOutcome>& outcomes,
    Copies copies,
    WorkerPool& pool,
    const std::atomic<bool>& cancel
) {
  return run({plan, &outcomes, copies, cancel}, plan, pool, cancel);
}

double write_deferred(LoadedPlan& plan, WorkerPool& pool, const std::atomic<bool>& cancel) {
  return run({plan, nullptr, Copies::Equal, cancel}, plan, pool, cancel);
}

}  // namespace gradsync::device
