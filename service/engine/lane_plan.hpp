#pragma once
// Plan → what a lane needs of it.

#include "device/lane.hpp"
#include "plan/plan.hpp"

namespace gradsync::engine {

[[nodiscard]] device::LanePlan lane_plan_of(const plan::Plan& plan, const std::vector<std::uint64_t>& rank_buffers);

/// The same for a plan of data path `stats`; `rank_buffers` are the tables.
[[nodiscard]] device::StatsPlan stats_plan_of(const plan::Plan& plan, const std::vector<std::uint64_t>& rank_buffers);

/// Names of the layers, in the order of LanePlan's layer indices: first appearance among the tensors.
[[nodiscard]] std::vector<std::string> layer_names(const plan::Plan& plan);

}  // namespace gradsync::engine
