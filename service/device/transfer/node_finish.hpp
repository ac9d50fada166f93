#pragma once
// The finish of a step on one node of several, on data path `arena`: what its blocks and its own sums came to, for all
// nodes to add, and what it found. Nothing is decided.

#include "device/lane.hpp"
#include "device/loaded/loaded_plan.hpp"

namespace gradsync::device {

/// `absent` of the findings: tensors and tied copies that this node's ranks have, to whose sums none of them
/// contributed. `missing`: destinations here of a sum to which nobody did; also of a tensor that may be absent on every
/// node, which is for those that join the findings to know.
///
/// A part with several sums that are not all on this node is counted by the first of them, wherever that is made. If
/// nobody contributed to it while somebody did to another, the norm would leave the part out: that fails, with the
/// tensor, if this node knows of both. It does not where the two sums share no node; what the nodes say of absent
/// tensors tells it then: the nodes of the first sum all have the tensor absent, and some node has not.
///
/// Throws DeviceError as `finish_step` does, and where something is to be decided.
[[nodiscard]] Finished finish_node(LoadedPlan& plan, const FinishStep& command);

}  // namespace gradsync::device
