#pragma once
// The norm set, and which sums over ranks its norm takes: over exactly the axes on which a tensor is spread, expert
// axes once, the pipeline once, nothing over axes that replicate (docs/adr/0008).

#include "plan/merge/merge_declarations.hpp"
#include "plan/plan.hpp"

namespace gradsync::plan {

/// Fills Plan::norm_groups, scalar_sums and scalar_collectives, and the tensors' `norm_group`. `plan.tensors` stand in
/// the order of `merged.tensors`; the clip groups are planned already.
void plan_norm_program(Plan& plan, const Merged& merged);

}  // namespace gradsync::plan
