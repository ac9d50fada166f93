#pragma once
// FinishStep and ScaleGradients: statistics → norms → coefficients, and the second pass over memory.

#include "device/step/step_passes.hpp"

namespace gradsync::device {

/// Throws DeviceError: Aborted when the attempt was cancelled in time; Failed when a bucket was not reduced with the
/// command's tag, when the step was already applied, or the rules do not match the plan.
[[nodiscard]] StepMath finish_step(LoadedPlan& plan, const FinishStep& command, const StepPasses& passes);

/// The sums of the tensors in some buckets, and what was found in them. Throws DeviceError as `finish_step` does.
[[nodiscard]] Measured measure_buckets(LoadedPlan& plan, const MeasureBuckets& command, const StepPasses& passes);

/// The scale pass of a step that was finished without it. Returns the seconds it took.
double scale_gradients(LoadedPlan& plan, const ScaleGradients& command, const StepPasses& passes);

}  // namespace gradsync::device
