#pragma once
// The longest report that a step of a plan can have, so that room can be reserved for it. Pure.

#include "engine/report/report.hpp"
#include "engine/report/step_report.hpp"
#include "plan/plan.hpp"

namespace gradsync::engine {

/// Every list as long as a step can make it, every number as long as its text can get.
[[nodiscard]] StepReport largest_report(const plan::Plan& plan, const ReportConstants& constants);

}  // namespace gradsync::engine
