#pragma once
// What of a plan over nodes travels by NCCL, and on which lanes of this node (docs/adr/0037, 0045).

#include "base/error.hpp"
#include "engine/plan/planner_port.hpp"
#include "plan/transfer/bucket_collectives.hpp"

#include <optional>
#include <vector>

namespace gradsync::engine {

/// Data path arena over nodes: a share for each site of this node, which has every bucket. UnsupportedPlacement where
/// gradients of some ranks are on GPUs, and others not.
[[nodiscard]] Result<std::vector<LaneShare>> shares_of_sites(const PlanRequest& request, const plan::Plan& plan);

/// Whether this node's gradients lie on a GPU. The plan is over nodes.
[[nodiscard]] bool lies_on_gpu(const PreparedPlan& prepared);

/// By rank; where each node is one, nodes.
[[nodiscard]] const std::vector<SiteNumber>& sites_by_rank(const PlanRequest& request);

/// Gives what travels to communicators, or says why it cannot go by them.
[[nodiscard]] std::optional<Error> use_collectives(
    PreparedPlan& prepared, device::LaneNodes& nodes, const plan::CollectivesByBucket& collectives
);

/// A message has room for so many communicators of a node.
[[nodiscard]] std::optional<Error> refuse_offers(const PreparedPlan& prepared, std::size_t most = kMostOffers);

}  // namespace gradsync::engine
