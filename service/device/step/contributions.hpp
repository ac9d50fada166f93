#pragma once
// The contributions of ranks in an attempt: which tensors are absent, which sum of a part is counted, and which ranks
// lack a gradient that others have.

#include "device/lane.hpp"
#include "device/loaded/loaded_plan.hpp"

namespace gradsync::device {

/// Forgets what the bucket's last attempt found and notes the contributions of this one.
void begin_attempt(LoadedPlan& plan, const ReduceBucket& command);

/// Adds the finding of a tensor if it has sums to which no rank contributed in the attempt that began last.
void report_missing(const LoadedPlan& plan, std::uint32_t tensor, StepMath& math);

}  // namespace gradsync::device
