#pragma once
// Fingerprints of weights: ranks that hold the same part of a tensor start from the same values.

#include "base/error.hpp"
#include "plan/merge/merge_declarations.hpp"

namespace gradsync::plan {

/// For tensors that agree otherwise. Where the daemon reduces, all holders give fingerprints or none does; else those
/// are compared that are there. Errors: PlanMismatch where only some gave one; WeightsDiverged with the first tensor
/// and the ranks outside the majority, or all ranks where there is none.
[[nodiscard]] Result<void> compare_weights(Declarations by_rank, const Merged& merged);

}  // namespace gradsync::plan
