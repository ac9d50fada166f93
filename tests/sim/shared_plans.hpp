#pragma once
// The planner of thousands of daemons, which would make one and the same plan as often: it is made once, and cut to
// each node as `run_planner` does it.

#include "engine/plan/planner_port.hpp"

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace gradsync::sim {

class SharedPlans {
 public:
  [[nodiscard]] engine::PlanOutcome plan(const engine::PlanRequest& request);

 private:
  /// Ranks after each other that declared the same.
  struct Run {
    std::string content;
    std::size_t ranks = 0;

    friend bool operator==(const Run&, const Run&) = default;
  };

  struct Made {
    std::vector<Run> contents;
    std::vector<engine::NodeNumber> node_of_rank;
    engine::PreparedPlan prepared;
    device::StatsPlan whole;
  };

  [[nodiscard]] static std::vector<Run> runs_of(const engine::PlanRequest& request);

  std::unique_ptr<Made> made_;  ///< the one that was asked for last
};

}  // namespace gradsync::sim
