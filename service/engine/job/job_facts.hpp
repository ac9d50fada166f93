#pragma once
// What the façade last knew of one job. Only `JobIndex` reads and writes it. Thread: io.

#include "base/clock.hpp"
#include "device/lane.hpp"

#include <map>
#include <optional>
#include <vector>

namespace gradsync::engine {

class Job;

/// What decides beside which lanes a job computes.
struct Computing {
  bool computes = false;       ///< some rank computes
  device::PlanId plan = 0;     ///< the plan under way; 0: none, so that it computes beside any lane
  device::LaneId next_lane{};  ///< lanes from here on did not exist

  bool operator==(const Computing&) const = default;
};

struct JobFacts {
  using Deadlines = std::multimap<TimePoint, Job*>;

  bool touched = false;  ///< by the event that is being handled
  bool closing = false;  ///< it has no ranks any more
  std::optional<Deadlines::iterator> due;
  Deadlines::node_type spare;          ///< the memory of `due` while there is none: a step takes none
  std::vector<device::LaneId> beside;  ///< it was counted among the jobs that compute beside these
  std::optional<Computing> computing;  ///< what `beside` follows from
};

}  // namespace gradsync::engine
