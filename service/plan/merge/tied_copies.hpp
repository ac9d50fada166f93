#pragma once
// Tensors of one `tied` id are one weight: what is cut alike must be equal, to begin with and in every gradient.

#include "plan/merge/merge_declarations.hpp"

#include <cstdint>
#include <vector>

namespace gradsync::plan {

/// By box of the copy: the box of `counted` with the same offset and extent; −1: there is none, or it is empty.
[[nodiscard]] std::vector<std::int32_t> equal_boxes(
    Declarations by_rank, const Merged& merged, const MergedTensor& counted, const MergedTensor& copy
);

/// Whether the ranks that hold those boxes gave the same fingerprints of their weights, where both did.
/// Errors: WeightsDiverged.
[[nodiscard]] Result<void> compare_tied_weights(
    Declarations by_rank, const MergedTensor& counted, const MergedTensor& copy
);

}  // namespace gradsync::plan
