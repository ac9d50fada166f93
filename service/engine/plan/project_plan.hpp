#pragma once
// Plan → what each lane executes of it. Pure.

#include "base/error.hpp"
#include "device/lane.hpp"
#include "plan/plan.hpp"

#include <cstdint>
#include <vector>

namespace gradsync::engine {

/// The part of a plan that one lane executes.
struct LaneShare {
  device::LaneId lane = device::kHostLane;
  std::vector<std::uint32_t> buckets;  ///< in plan order; none on data path `stats`
  std::uint32_t site = 0;              ///< where ranks are on several nodes: which of the job's sites the lane is
  friend bool operator==(const LaneShare&, const LaneShare&) = default;
};

/// `lane_of_rank` says which lane holds each rank's buffer; empty: the host lane holds all. Lanes of GPUs reach each
/// other's memory: each bucket, the largest first, goes whole to the lane with the fewest bytes among those of the
/// ranks that hold something of it, and a lane that gets none is left out. There is at least one share; they come in
/// the order of their first ranks. UnsupportedPlacement where some ranks are on the host lane and others are not, and
/// where tables of data path `stats` are on several.
[[nodiscard]] Result<std::vector<LaneShare>> project_plan(
    const plan::Plan& plan, const std::vector<device::LaneId>& lane_of_rank
);

}  // namespace gradsync::engine
