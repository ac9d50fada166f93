#pragma once
// The clip set: every gradient that any rank holds, in the group whose coefficient multiplies it.

#include "plan/plan.hpp"

namespace gradsync::plan {

/// Fills Plan::clip_groups and the tensors' `clip_group`: groups of the options first, in their order; then the others
/// by first appearance, which only measure. There is at least one.
void plan_clip_groups(Plan& plan);

}  // namespace gradsync::plan
