#pragma once
// ReduceBucket: the contributions of an attempt, the reducing pass, and the sums of its chunks.

#include "device/step/step_passes.hpp"

namespace gradsync::device {

/// The first half, before anything is read or written; throws DeviceError for a command that does not fit the plan.
void begin_bucket(LoadedPlan& plan, const ReduceBucket& command);

/// The last one, when every sum is made. Throws DeviceError as the passes do.
void end_bucket(LoadedPlan& plan, const ReduceBucket& command, const StepPasses& passes);

/// All of it, where nothing travels. Throws DeviceError: Aborted when the attempt was cancelled in time, Failed for a
/// command that does not fit the plan.
void reduce_bucket(LoadedPlan& plan, const ReduceBucket& command, const StepPasses& passes);

}  // namespace gradsync::device
