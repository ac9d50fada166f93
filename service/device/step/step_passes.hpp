#pragma once
// The passes of a step over gradient memory, which each kind of device makes in its own way. Everything else of a step
// (step_finish.hpp, bucket_step.hpp) is the same code on all of them, and so are the bits.

#include "device/lane.hpp"
#include "device/loaded/loaded_plan.hpp"

#include <vector>

namespace gradsync::device {

/// Whether the destinations of a sum still hold the equal bits that the reduction gave them. Not once the trainers have
/// had the gradients back in between.
enum class Copies { Equal, OwnedByRanks };

/// Each function throws DeviceError: Aborted when the attempt is cancelled in time, Failed where the device fails.
class StepPasses {
 public:
  virtual ~StepPasses() = default;

  /// Makes every sum of the bucket, with `chunk_stats` of its chunks, and raises `nonfinite`, `differs` and `flagged`
  /// of the attempt. The attempt knows who contributed.
  virtual void reduce(LoadedPlan& plan, const ReduceBucket& command) const = 0;

  /// Takes `power_sum` of the attempt's `rescaled_chunks` again, divided by the scales of their tensors.
  virtual void sum_again(LoadedPlan& plan) const = 0;

  /// Multiplies every held gradient of the clip groups that ask for it, on every rank: the clip set is not the norm
  /// set. Tensors to which no rank contributed are left alone. Where `action` is Zero all that is held becomes 0, but
  /// for tensors that are absent; where any group skips or raises nothing is multiplied, in no group. What was deferred
  /// is written in the same pass. Seconds it took; 0 where none was needed.
  [[nodiscard]] virtual double multiply(LoadedPlan& plan, const std::vector<plan::ClipOutcome>& outcomes, Copies copies)
      const = 0;

  /// Writes only the copies that the reduction deferred, for trainers that must see the sums. Seconds it took.
  [[nodiscard]] virtual double write_deferred(LoadedPlan& plan) const = 0;

  /// Throws DeviceError Aborted where the attempt is cancelled.
  virtual void throw_if_cancelled() const = 0;
};

}  // namespace gradsync::device
