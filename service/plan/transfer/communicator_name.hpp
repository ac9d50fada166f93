#pragma once
// How a group of ranks that sums something together is called, on every node alike.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace gradsync::plan {

inline constexpr std::size_t kCommunicatorNameBytes = 128;

/// The axes, and XXH3-64 of the ranks in their order, each as 8 bytes: "dp_replicate+dp_shard:0f3a…". Axes with longer
/// names are cut, so that a message has room for many.
[[nodiscard]] std::string communicator_name(
    const std::vector<std::string>& axes, const std::vector<std::int64_t>& ranks
);

}  // namespace gradsync::plan
