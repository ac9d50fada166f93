#pragma once
// What the lane of one node of several gets: its part of a plan of data path `stats`, what of a plan of data path arena
// travels, and which rows the coordinator wants of it. Pure.

#include "device/lane.hpp"
#include "engine/peers/peer_message.hpp"
#include "engine/peers/sums/comparison.hpp"

#include <cstdint>
#include <vector>

namespace gradsync::engine {

/// `whole`: the layout of the plan that `comparison` is of. What is left has the holders on this node, says which of
/// their boxes another node counts, and has the classes that the node is in, in the order of `of_node`. Tensors keep
/// their indices.
[[nodiscard]] device::StatsPlan stats_plan_of_node(
    device::StatsPlan whole, const Comparison& comparison, NodeNumber node
);

/// Data path arena: what travels of every bucket, and the classes that the node is in, in the order of `of_node`. All
/// nodes make the same transfers, whose sizes are those of the release.
[[nodiscard]] device::LaneNodes lane_nodes_of(const plan::Plan& plan, const Comparison& comparison, NodeNumber node);

/// The same for another site of this node.
[[nodiscard]] device::LaneNodes at_site(device::LaneNodes nodes, const Comparison& comparison, SiteNumber site);

/// What it takes of the memory, about: the programs and what the lane makes of them, its staging memory, and what is
/// compared, here and by the job.
[[nodiscard]] std::uint64_t memory_of(const device::LaneNodes& nodes);
[[nodiscard]] std::uint64_t memory_of(const Comparison& comparison);

/// The nodes that this one sends to or receives from, ascending. Each of them has this one among its own.
[[nodiscard]] std::vector<NodeNumber> linked_nodes_of(const device::LaneNodes& nodes);

/// What of `wanted` this node has, by the classes of that plan. Plan and tag are the caller's to say.
[[nodiscard]] device::ReadRows rows_wanted_of(const Comparison& comparison, NodeNumber node, PeerCompare wanted);

}  // namespace gradsync::engine
