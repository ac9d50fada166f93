#pragma once
// Which parts of tensors lie on several nodes, as a pure function of plan and rank → node. Made on the planner's
// thread. Where GPUs of a node are sites of their own (docs/adr/0045), each of them is a node here.
//
// A box is counted on its owner, the node of its lowest holder; other nodes that hold it compare. Boxes with equal sets
// of nodes and one owner make a class, and a node sends one hash per class that it is in, in the order of classes
// (device/stats/box_hash.hpp). Tied copies belong to the box that is counted for them, and never own it.
//
// On data path arena boxes are parts, by their numbers in PlannedTensor::parts, and those are compared that have
// several sums which are not all on one node: what gets one sum has equal bits already. A part is counted by its first
// sum, so its owner is the lowest node that gets that. One node may get all sums of a part, to which other nodes
// contribute; it makes a class by itself, because the first sum may have no gradient.

#include "engine/peers/peer_message.hpp"
#include "plan/plan.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gradsync::engine {

struct Comparison {
  using Box = device::StatsBox;

  struct Class {
    std::vector<NodeNumber> nodes;  ///< ascending; at least two, unless gradients travel
    NodeNumber owner = 0;    ///< counts these boxes; need not be the first, because ranks of nodes can interleave
    std::vector<Box> boxes;  ///< in the order of the plan; one of a tied copy is here as that counted for it
  };

  std::vector<NodeNumber> node_of_rank;
  std::vector<Class> classes;                       ///< by their first boxes
  std::vector<std::vector<std::uint32_t>> of_node;  ///< by NodeNumber: the classes that it is in, ascending
  std::size_t groups = 0;  ///< sums of clip groups that a node sends; 0 where there is one group
  std::size_t layers = 0;  ///< sums of layers that it sends
};

/// The box that counts for it: itself, unless it is that of a tied copy.
[[nodiscard]] Comparison::Box counted_box(const plan::Plan& plan, Comparison::Box box);

/// `node_of_rank`: one number per rank of the job.
[[nodiscard]] Comparison comparison_of(const plan::Plan& plan, std::vector<NodeNumber> node_of_rank);

/// What an ask of the node with these sites says that is impossible with this plan, in words; nothing: it may be read.
[[nodiscard]] std::optional<std::string> misfit_of(
    const plan::Plan& plan, const Comparison& comparison, const std::vector<SiteNumber>& sites, const PeerAsk& ask
);

/// The same of a decision of the coordinator, to which the ask of this node led.
[[nodiscard]] std::optional<std::string> misfit_of(
    const plan::Plan& plan, const Comparison& comparison, const PeerDecision& decision
);

/// How long the longest ask is that the node which may say most sends, in bytes of its text.
struct AskSize {
  std::uint64_t bytes = 0;
  std::size_t sites = 0;  ///< of that node
};

/// `node_of_rank`: that of the job's nodes, of which some may have several sites. Node 0 is the coordinator's, and
/// sends none.
[[nodiscard]] AskSize largest_ask(
    const plan::Plan& plan, const Comparison& comparison, const std::vector<NodeNumber>& node_of_rank
);

/// Whether the row is of a rank of this node that holds the box, which counts as one of `boxes` (ascending).
[[nodiscard]] bool belongs(
    const plan::Plan& plan,
    const Comparison& comparison,
    NodeNumber node,
    const std::vector<Comparison::Box>& boxes,
    const PeerRows::Row& row
);

}  // namespace gradsync::engine
