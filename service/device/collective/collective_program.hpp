#pragma once
// The collectives of a step of a loaded plan, as the lane of one node takes part in them: made once, of the transfer
// program of each bucket.

#include "device/lane.hpp"
#include "device/nccl/launch_order.hpp"
#include "device/transfer/node_plan.hpp"
#include "plan/transfer/bucket_collectives.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gradsync::device {

struct NodeCollective {
  PlannedCollective planned;
  std::vector<std::uint32_t> blocks;  ///< by place: index into NodeBucket::blocks; plan::kNoBlock: nothing is there
  std::vector<std::uint64_t> begins;  ///< by place, and the end of the last one, in elements
  std::uint32_t own = 0;              ///< where it is scattered: the place whose sum this node gets
  std::uint64_t staging_bytes = 0;    ///< places, and behind them the sum where it is scattered
};

struct CollectiveProgram {
  std::vector<std::vector<NodeCollective>> buckets;
  std::uint64_t staging_bytes = 0;  ///< that are needed at once, at most

  /// All of them, in the one order of a step: by bucket.
  [[nodiscard]] std::vector<PlannedCollective> step() const;
};

/// For a layout that was checked and has communicators. Throws DeviceError where they are not those that its transfers
/// need, or partial sums would be rounded.
[[nodiscard]] CollectiveProgram make_collective_program(const LanePlan& layout, const NodePlan& nodes);

}  // namespace gradsync::device
