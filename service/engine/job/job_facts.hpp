#pragma once
// What the façade last knew of one job. Only `JobIndex` reads and writes it. Thread: io.

#include "base/clock.hpp"

#include <map>
#include <optional>
#include <vector>

namespace gradsync::engine {

class Job;

struct JobFacts {
  using Deadlines = std::multimap<TimePoint, Job*>;

  bool touched = false;  ///< by the event that is being handled
  bool closing = false;  ///< it has no ranks any more
  std::optional<Deadlines::iterator> due;
  Deadlines::node_type spare;  ///< the memory of `due` while there is none: a step takes none
  std::vector<bool> beside;    ///< by lane: it was counted among the jobs that compute beside it
};

}  // namespace gradsync::engine
