#pragma once
// What is to be said of a tensor whose slots were raised: values that are not finite, and copies that differ.

#include "device/lane.hpp"
#include "device/loaded/loaded_plan.hpp"

namespace gradsync::device {

/// Adds the findings by rank, while there is room for them.
void report_ranks(const LoadedPlan& plan, std::uint32_t index, StepMath& math);

}  // namespace gradsync::device
