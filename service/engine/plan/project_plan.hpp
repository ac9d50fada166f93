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
  std::vector<std::uint32_t>
      ranks;  ///< the ranks that have their buffers on it: arenas, or tables on data path `stats`
  std::vector<std::uint32_t> buckets;  ///< in plan order; none on data path `stats`
  friend bool operator==(const LaneShare&, const LaneShare&) = default;
};

/// `lane_of_rank` says which lane holds each rank's buffer; empty: the host lane holds all. The shares come in the
/// order of their first ranks. UnsupportedPlacement where what is summed together lies on two lanes: no lane reads the
/// memory of another.
[[nodiscard]] Result<std::vector<LaneShare>> project_plan(
    const plan::Plan& plan, const std::vector<device::LaneId>& lane_of_rank
);

}  // namespace gradsync::engine
