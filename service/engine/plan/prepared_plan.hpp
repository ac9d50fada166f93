#pragma once
// A plan with all that is worked out from it once: it may have 100,000 tensors, so that is done where it was made and
// the io thread only hands it on.

#include "engine/peers/sums/comparison.hpp"
#include "engine/plan/lane_plan.hpp"
#include "engine/plan/project_plan.hpp"
#include "engine/report/communicators.hpp"
#include "engine/report/largest_report.hpp"
#include "engine/report/step_report.hpp"
#include "engine/step/join_cells.hpp"
#include "plan/memory.hpp"

#include <cstddef>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace gradsync::engine {

struct PreparedPlan {
  explicit PreparedPlan(plan::Plan made, const EncodeReport& encode = nullptr)
      : plan(std::make_shared<const plan::Plan>(std::move(made))),
        layout(lane_layout_of(*plan)),
        constants(report_constants(*plan)),
        memory_bytes(plan::memory_of(*plan)) {
    if (encode) {
      constexpr auto kAnyLength = std::numeric_limits<std::size_t>::max();
      encoded_bytes = encode(largest_report(*plan, constants), kAnyLength).size();
    }
  }

  std::shared_ptr<const plan::Plan> plan;
  LaneLayout layout;
  std::vector<LaneShare> shares;                 ///< `run_planner` knows where buffers lie
  std::optional<JoinPlan> join;                  ///< where there are several that cut the plan's buckets
  std::shared_ptr<const Comparison> comparison;  ///< where ranks are on several nodes: the layout is that of this one
  std::vector<device::LaneNodes> other_sites;    ///< of the shares behind the first, whose own is in the layout
  Communicators communicators;                   ///< of all of them
  std::vector<NodeNumber> linked;  ///< other nodes that sums of this one travel to or from, by sockets; ascending
  bool cpu_collectives = false;    ///< they travel by NCCL: a lane for that takes the place of the host's
  ReportConstants constants;
  std::uint64_t memory_bytes = 0;
  std::size_t encoded_bytes = 0;  ///< the size of the longest report; 0: not measured
};

}  // namespace gradsync::engine
