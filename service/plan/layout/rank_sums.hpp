#pragma once
// Decides which ranks are summed with each other, for every part of every tensor (docs/adr/0009). Pure.

#include "plan/merge/merge_declarations.hpp"
#include "plan/plan.hpp"

namespace gradsync::plan {

/// Fills Plan::sums and the tensors' `parts` and `copies`. `plan.tensors` stand in the order of `merged.tensors`.
/// Errors: PlanMismatch, for tied tensors that are not reduced or cut alike.
[[nodiscard]] Result<void> plan_sums(Plan& plan, Declarations by_rank, const Merged& merged);

/// Finds the runs of `part` in the row-major memory of `whole`, which contains it. Fills all fields except `box` and
/// `sums`.
[[nodiscard]] PlannedPart part_of(const Box& whole, const Box& part);

}  // namespace gradsync::plan
