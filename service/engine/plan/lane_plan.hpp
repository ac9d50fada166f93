#pragma once
// Plan → what a lane needs of it.

#include "device/lane.hpp"
#include "plan/plan.hpp"

#include <string>
#include <variant>
#include <vector>

namespace gradsync::engine {

/// By data path. `rank_buffers` is left empty: the ranks' buffers are known when it is loaded.
using LaneLayout = std::variant<device::LanePlan, device::StatsPlan>;

[[nodiscard]] LaneLayout lane_layout_of(const plan::Plan& plan);

/// Names of the layers, in the order of LanePlan's layer indices: first appearance among the tensors.
[[nodiscard]] std::vector<std::string> layer_names(const plan::Plan& plan);

}  // namespace gradsync::engine
