#pragma once
// What of a plan over nodes travels by NCCL, and on which lane of this node.

#include "base/error.hpp"
#include "engine/plan/planner_port.hpp"

#include <optional>

namespace gradsync::engine {

/// Over nodes the gradients of each node lie in one place: whether those of this one do not.
[[nodiscard]] std::optional<Error> refuse_several_lanes(const PlanRequest& request, const plan::Plan& plan);

/// Whether this node's gradients lie on a GPU. The plan is over nodes.
[[nodiscard]] bool lies_on_gpu(const PreparedPlan& prepared);

/// Gives what travels to communicators, or says why it cannot go by them.
[[nodiscard]] std::optional<Error> use_collectives(PreparedPlan& prepared, device::LaneNodes& nodes);

}  // namespace gradsync::engine
