#pragma once
// The sums of several lanes → one norm and one decision. Pure. Tensors are added in the order of the plan, as a lane
// that has all of it does, so the bits do not depend on how the plan was cut.

#include "device/lane.hpp"

#include <cstdint>
#include <vector>

namespace gradsync::engine {

/// What the addition needs to know of a plan.
struct JoinPlan {
  double norm_type = 2.0;
  std::uint32_t clip_groups = 1;
  std::uint32_t layers = 0;

  struct Tensor {
    std::uint32_t clip_group = 0;
    std::int32_t layer = -1;
  };

  std::vector<Tensor> tensors;
};

[[nodiscard]] JoinPlan join_plan_of(const device::LanePlan& plan);

/// `parts`: one of each lane, of buckets that are disjoint. One rule for each clip group. Findings are those of all
/// lanes, by tensor, at most kMaxFindings of a kind; times are the longest.
[[nodiscard]] device::StepMath join_cells(
    const JoinPlan& plan,
    const std::vector<device::Measured>& parts,
    const std::vector<plan::ClipRule>& rules,
    double scale
);

}  // namespace gradsync::engine
