#pragma once
// Who contributes to what in an attempt: which tensors are absent, which sum of a part is counted, and who lacks a
// gradient that others have.

#include "device/lane.hpp"
#include "device/loaded_plan.hpp"

namespace gradsync::device {

/// Forgets what the bucket's last attempt found and notes the contributions of this one.
void begin_attempt(LoadedPlan& plan, const ReduceBucket& command);

/// Adds the finding of a tensor with sums to which nobody contributed, if it has such; of an attempt's last begin.
void report_missing(const LoadedPlan& plan, std::uint32_t tensor, StepMath& math);

}  // namespace gradsync::device
