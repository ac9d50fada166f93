#pragma once
// ReduceBucket: the contributions of an attempt, the reducing pass, and the sums of its chunks.

#include "device/step/step_passes.hpp"

namespace gradsync::device {

/// Throws DeviceError: Aborted when the attempt was cancelled in time, Failed for a command that does not fit the plan.
void reduce_bucket(LoadedPlan& plan, const ReduceBucket& command, const StepPasses& passes);

}  // namespace gradsync::device
