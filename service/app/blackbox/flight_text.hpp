#pragma once
// An analysis for people, and for programs.

#include "app/blackbox/flight_analysis.hpp"

#include <string>

namespace gradsync::app {

/// The sentence, then the last attempts, a line for each node.
[[nodiscard]] std::string flight_text(const FlightWorld& world, const FlightFinding& finding);

/// The same as one JSON object.
[[nodiscard]] std::string flight_json(const FlightWorld& world, const FlightFinding& finding);

}  // namespace gradsync::app
