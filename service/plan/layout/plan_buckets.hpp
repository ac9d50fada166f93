#pragma once
// Decides which tensors are reduced by one launch.

#include "plan/make_plan.hpp"
#include "plan/merge/merge_declarations.hpp"

namespace gradsync::plan {

/// Fills Plan::buckets, but for their sizes, and the tensors' `bucket`. The sums are planned already. `sizes` are those
/// of the default rule.
void plan_buckets(Plan& plan, Declarations by_rank, const Merged& merged, BucketSizes sizes);

}  // namespace gradsync::plan
