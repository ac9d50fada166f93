#pragma once
// What a node of several says of the copies that it holds, on data path `stats`: hashes of all, and the rows of some.

#include "device/lane.hpp"
#include "device/loaded/loaded_stats.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace gradsync::device {

/// One hash per class of the plan. The finish before has checked the tables, which trainers may write all the while: it
/// throws RowError for a row that has a gradient now and had none when `counted` counted its box, or the other way
/// around, because that box would be in no sum, or in two. DeviceError where it is cancelled.
[[nodiscard]] std::vector<std::uint64_t> hash_classes(
    const LoadedStats& plan, const RawFinish& counted, const std::atomic<bool>& cancel
);

/// Throws DeviceError unless a raw finish came before, and either classes that there are or boxes are asked for.
void check_wanted(const ReadRows& command, bool finished, std::size_t classes);

/// Throws DeviceError unless a raw finish of this attempt came before and the plan has what is asked for, RowError for
/// a row that is stale or impossible by now, and as `hash_classes` does.
[[nodiscard]] RowsRead read_rows(LoadedStats& plan, const ReadRows& command, const std::atomic<bool>& cancel);

}  // namespace gradsync::device
