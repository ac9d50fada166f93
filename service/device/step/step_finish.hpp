#pragma once
// FinishStep and ScaleGradients: statistics → norms → coefficients, and the second pass over memory.

#include "device/step/step_passes.hpp"

#include <cstdint>
#include <vector>

namespace gradsync::device {

/// Throws DeviceError: Aborted when the attempt was cancelled in time; Failed when a bucket was not reduced with the
/// command's tag, when the step was already applied, or the rules do not match the plan.
[[nodiscard]] StepMath finish_step(LoadedPlan& plan, const FinishStep& command, const StepPasses& passes);

/// Throws DeviceError unless these buckets, or all, hold sums of this attempt that nothing was applied to.
void check_reduced(const LoadedPlan& plan, Tag tag, const std::vector<std::uint32_t>& buckets = {});

/// The sums of the tensors in some buckets, and what was found in them. Throws DeviceError as `finish_step` does.
[[nodiscard]] Measured measure_buckets(LoadedPlan& plan, const MeasureBuckets& command, const StepPasses& passes);

/// Whether the gradients of an attempt may be multiplied, which happens once. Throws DeviceError.
void begin_scaling(LoadedPlan& plan, const ScaleGradients& command);

/// The scale pass of a step that was finished without it. Returns the seconds it took.
double scale_gradients(LoadedPlan& plan, const ScaleGradients& command, const StepPasses& passes);

}  // namespace gradsync::device
