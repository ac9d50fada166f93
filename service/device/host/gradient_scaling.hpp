#pragma once
// The second pass over memory: the multiplication of a clip, or the zeros of a group whose norm is not finite; and what
// the reduction left to it, the copies of a sum for all destinations but the first.

#include "device/host/worker_pool.hpp"
#include "device/step/step_passes.hpp"

#include <atomic>
#include <vector>

namespace gradsync::device {

/// As StepPasses::multiply.
double multiply_gradients(
    LoadedPlan& plan,
    const std::vector<plan::ClipOutcome>& outcomes,
    Copies copies,
    WorkerPool& pool,
    const std::atomic<bool>& cancel
);

/// As StepPasses::write_deferred.
double write_deferred(LoadedPlan& plan, WorkerPool& pool, const std::atomic<bool>& cancel);

}  // namespace gradsync::device
