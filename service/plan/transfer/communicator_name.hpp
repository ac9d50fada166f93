#pragma once
// How a group of ranks that sums something together is called, on every node alike.

#include <cstdint>
#include <string>
#include <vector>

namespace gradsync::plan {

/// The axes, and XXH3-64 of the ranks in their order, each as 8 bytes: "dp_replicate+dp_shard:0f3a…".
[[nodiscard]] std::string communicator_name(
    const std::vector<std::string>& axes, const std::vector<std::int64_t>& ranks
);

}  // namespace gradsync::plan
