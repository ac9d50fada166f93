#pragma once
// The communicators by which the sums of one node travel, where NCCL carries them (docs/adr/0037). Pure: all nodes make
// the same of one plan.

#include "device/lane.hpp"
#include "plan/plan.hpp"
#include "plan/transfer/bucket_collectives.hpp"

#include <cstdint>

namespace gradsync::engine {

/// One for each set of nodes that something is summed over, this node among them, by these nodes. Its axes are those of
/// all buckets that it serves, in their order; the lowest rank of each node stands for it. The job is the caller's to
/// say.
[[nodiscard]] device::LaneCommunicators lane_communicators_of(const plan::Plan& plan, const device::LaneNodes& nodes);

/// The collectives of all nodes.
[[nodiscard]] plan::CollectivesByBucket collectives_by_bucket(const device::LaneNodes& nodes);

/// The staging memory that two collectives of this node take at once, at most.
[[nodiscard]] std::uint64_t collective_staging_of(
    const device::LaneNodes& nodes, const plan::CollectivesByBucket& collectives
);

}  // namespace gradsync::engine
