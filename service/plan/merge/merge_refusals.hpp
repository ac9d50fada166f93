#pragma once
// Errors for declarations of several ranks that do not make one list of tensors. Used by merge_declarations only.

#include "base/error.hpp"
#include "plan/merge/merge_declarations.hpp"
#include "plan/merge/tensor_difference.hpp"

#include <array>
#include <cstdint>

namespace gradsync::plan {

/// Two ranks, the first of which declared it before, say different things of one tensor.
[[nodiscard]] Error holders_differ(
    const TensorDeclaration& tensor, std::array<std::uint32_t, 2> ranks, std::uint32_t row, const Difference& found
);

/// A rank declares what `only` puts elsewhere.
[[nodiscard]] Error not_placed_here(
    const TensorDeclaration& tensor, const Mesh& mesh, std::uint32_t rank, std::uint32_t row
);

/// Ranks that the placements name did not declare it.
[[nodiscard]] Error holders_missing(
    const TensorDeclaration& tensor, const MergedTensor& merged, const PlacedRanks& placed
);

/// Tensors with one `tied` id that cannot be one weight; `merged` is the later one.
[[nodiscard]] Error tied_differ(
    const TensorDeclaration& counted, const MergedTensor& merged, const TensorDeclaration& tensor
);

/// Tied tensors that are to be summed, but not alike; `merged` is the later one.
[[nodiscard]] Error tied_reduced_otherwise(
    const TensorDeclaration& counted, const MergedTensor& merged, const TensorDeclaration& tensor
);

}  // namespace gradsync::plan
