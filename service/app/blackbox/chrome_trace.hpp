#pragma once
// Dumps as a trace that chrome://tracing and Perfetto show: a process for each node, attempts on one line, and of each
// bucket the time until it was launched and the time that the lane took.

#include "app/blackbox/flight_world.hpp"

#include <cstdint>
#include <string>

namespace gradsync::app {

/// What is added to times of the view so that they are those of the world's first view. The decisions that both know
/// are the same moment; where there is none, the wall clocks of the nodes have to do.
[[nodiscard]] std::int64_t shift_us(const FlightWorld& world, const FlightView& view);

[[nodiscard]] std::string chrome_trace(const FlightWorld& world);

}  // namespace gradsync::app
