#pragma once
// Where every rank's tensors lie in its arena. Ranks that are laid out alike share one layout.

#include "plan/merge_declarations.hpp"
#include "plan/plan.hpp"

namespace gradsync::plan {

/// Fills Plan::layouts, layout_of and rows_are_tensors, and the sizes of the buckets, which are planned already.
void plan_layouts(Plan& plan, Declarations by_rank, const Merged& merged);

/// What the output of a tensor may take on any rank that has so much of it before sync: clients lay out by this rule,
/// which asks neither rank nor coordinates. Each scattering cut leaves the first part, which is the largest.
[[nodiscard]] std::uint64_t reserved_output_bytes(const TensorDeclaration& tensor, const PlacedRanks& placed);

}  // namespace gradsync::plan
