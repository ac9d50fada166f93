#pragma once
// What all nodes sum to. Pure: nodes are added in their order, so the bits do not depend on which asked first.

#include "engine/peers/peer_message.hpp"
#include "plan/clip/clip_rule.hpp"
#include "plan/plan.hpp"

#include <span>
#include <string>
#include <vector>

namespace gradsync::engine {

/// All have equal numbers of groups and layers.
[[nodiscard]] NodeCells sum_of_nodes(double norm_type, std::span<const NodeCells* const> nodes);

/// What a node found, as it says so to the coordinator.
[[nodiscard]] NodeFindings findings_of(const device::StepMath& math);

/// Findings by tensor and rank, at most kMaxFindings of a kind; a tensor is absent where all nodes that hold parts of
/// it say so. Data path `stats`: it is missing on the ranks of those that do, where another has a gradient, and on all
/// its ranks where a tied copy alone has one. Data path arena: a tied copy is part of the sums, and missing are the
/// ranks that get a sum without a contribution: those that a node says to be, and where the sum's nodes have no
/// gradient.
[[nodiscard]] NodeFindings join_findings(
    const plan::Plan& plan, std::span<const NodeNumber> node_of_rank, std::span<const NodeFindings* const> nodes
);

/// Norms and outcomes by the rules, as `NormTotals::write` decides on one node. Cells of groups and layers are those of
/// the plan that the rules are of.
[[nodiscard]] device::StepMath decide(
    double norm_type,
    const NodeCells& cells,
    const NodeFindings& findings,
    const std::vector<plan::ClipRule>& rules,
    double scale
);

/// Adds findings by tensor, of ranks that are in one of the two.
void add_findings(const NodeFindings& some, NodeFindings& all);

/// 16 hex digits over the bits of norms, thresholds, coefficients and actions, and the policies' digest: what all nodes
/// vote for has to be one result.
[[nodiscard]] std::string result_digest(const device::StepMath& math, const std::string& policy_digest);

}  // namespace gradsync::engine
