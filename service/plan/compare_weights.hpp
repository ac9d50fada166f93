#pragma once
// Fingerprints of weights that must be equal on every rank before the first step.

#include "base/error.hpp"
#include "plan/declaration.hpp"

#include <span>

namespace gradsync::plan {

/// For declarations that agree otherwise. A tensor is compared when every rank gave its fingerprint.
/// Errors: PlanMismatch where only some ranks gave one; WeightsDiverged with the first tensor and the ranks outside the
/// majority, or all ranks where there is none.
[[nodiscard]] Result<void> compare_weights(std::span<const RankDeclaration* const> by_rank);

}  // namespace gradsync::plan
