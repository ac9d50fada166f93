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
/// nobody contributed to it while somebody did to another, no node counts the part, and hashes of classes say so: it is
/// counted from the rows of the first sum that has a gradient.
///
/// Throws DeviceError as `finish_step` does, and where something is to be decided.
[[nodiscard]] Finished finish_node(LoadedPlan& plan, const FinishStep& command);

}  // namespace gradsync::device
