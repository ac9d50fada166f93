#pragma once
// The second pass over memory: the multiplication of a clip, or the zeros of a group whose norm is not finite; and what
// the reduction left to it, the copies of a sum for all destinations but the first.

#include "device/host/worker_pool.hpp"
#include "device/lane.hpp"
#include "device/loaded/loaded_plan.hpp"

#include <atomic>
#include <vector>

namespace gradsync::device {

/// Whether the destinations of a sum still hold the equal bits that the reduction gave them. Not once the trainers have
/// had the gradients back in between.
enum class Copies { Equal, OwnedByRanks };

/// Multiplies every held gradient of the clip groups that ask for it, on every rank: the clip set is not the norm set.
/// Tensors to which no rank contributed are left alone. Where `action` is Zero all that is held becomes 0, but for
/// tensors that are absent; where any group skips or raises nothing is multiplied, in no group. What was deferred is
/// written in the same pass. Seconds it took; 0 where none was needed. Throws DeviceError: Aborted when `cancel` was
/// raised in time.
double multiply_gradients(
    LoadedPlan& plan,
    const std::vector<plan::ClipOutcome>& outcomes,
    Copies copies,
    WorkerPool& pool,
    const std::atomic<bool>& cancel
);

/// Writes only the copies that the reduction deferred, for trainers that must see the sums. Time and errors are as
/// above.
double write_deferred(LoadedPlan& plan, WorkerPool& pool, const std::atomic<bool>& cancel);

}  // namespace gradsync::device
