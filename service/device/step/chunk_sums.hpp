#pragma once
// The chunks' statistics → those of each tensor, and the second reading of tensors whose powers left the doubles.

#include "device/step/step_passes.hpp"

namespace gradsync::device {

/// Adds in the order of the chunks, which is that of parts and of their outputs. Throws DeviceError as the passes do.
void combine_chunks(LoadedPlan& plan, const LaneBucket& bucket, const StepPasses& passes);

}  // namespace gradsync::device
