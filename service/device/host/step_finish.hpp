#pragma once
// FinishStep and ScaleGradients on the CPU: statistics → norms → coefficients, and the second pass over memory.

#include "device/host/worker_pool.hpp"
#include "device/lane.hpp"
#include "device/loaded/loaded_plan.hpp"

#include <atomic>

namespace gradsync::device {

/// Throws DeviceError: Aborted when `cancel` was raised in time; Failed when a bucket was not reduced with the
/// command's tag, when the step was already applied, or the rules do not match the plan.
[[nodiscard]] StepMath finish_step(
    LoadedPlan& plan, const FinishStep& command, WorkerPool& pool, const std::atomic<bool>& cancel
);

/// The scale pass of a step that was finished without it. Returns the seconds it took.
double scale_gradients(
    LoadedPlan& plan, const ScaleGradients& command, WorkerPool& pool, const std::atomic<bool>& cancel
);

}  // namespace gradsync::device
