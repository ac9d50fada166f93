#pragma once
// The positions of every rank's tensors in its arena. Ranks that are laid out alike share one layout.

#include "plan/merge/merge_declarations.hpp"
#include "plan/plan.hpp"

namespace gradsync::plan {

/// Fills Plan::layouts, layout_of and rows_are_tensors, and the sizes of the buckets, which are planned already.
void plan_layouts(Plan& plan, Declarations by_rank, const Merged& merged);

/// The bytes that the output of a tensor may take on any rank with the same input. Clients lay out by this rule, so it
/// depends neither on rank nor on coordinates. Each scattering cut leaves the first part, which is the largest.
[[nodiscard]] std::uint64_t reserved_output_bytes(const TensorDeclaration& tensor, const PlacedRanks& placed);

}  // namespace gradsync::plan
