#pragma once
// Which ranks hold the copies that most ranks hold. Pure.

#include "device/stats/stats_plan.hpp"
#include "device/step_math.hpp"

#include <cstdint>
#include <utility>
#include <vector>

namespace gradsync::device {

/// Adds to the finding what the holders of one box have, unless all their rows agree: the majority, and the suspects.
/// Rows without a gradient agree with each other alone.
void add_copies(const std::vector<std::pair<std::int64_t, StatsRow>>& holders, double p, DivergenceFinding& finding);

}  // namespace gradsync::device
