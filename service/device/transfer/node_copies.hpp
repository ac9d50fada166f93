#pragma once
// What a node says of the parts that it compares with other nodes (LaneNodes::classes), on data path arena: hashes of
// all, and rows of some, made of the results in memory. Data path `stats` says the same of its tables, and hashes mean
// the same (device/stats/box_hash.hpp).
//
// The hash of a part tells whether every sum with a destination here has a gradient, and in steps that compare the bits
// of the results as well. A part is counted by its first sum. A node that has a destination of it, and knows that
// nobody contributed while somebody did to another sum here, says so by its hash.

#include "device/host/worker_pool.hpp"
#include "device/lane.hpp"
#include "device/loaded/loaded_plan.hpp"
#include "device/transfer/node_passes.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace gradsync::device {

/// The hash of a class in a step that does not compare, in which every sum has a gradient.
[[nodiscard]] std::uint64_t hash_of_whole_class(std::size_t parts);

/// One hash per class, when all buckets are reduced. That of a class is the hash of its first part that is counted by a
/// sum without a gradient, if there is one: no other node need know of that part.
[[nodiscard]] std::vector<std::uint64_t> hash_copies(const LoadedPlan& plan);

/// Throws DeviceError unless a raw finish of this attempt came before and the plan has what is asked for, or where it
/// is cancelled.
[[nodiscard]] RowsRead read_copies(
    const LoadedPlan& plan,
    const ReadRows& command,
    OutputReader& outputs,
    WorkerPool& pool,
    const std::atomic<bool>& cancel
);

}  // namespace gradsync::device
