#pragma once
// A plan in words: why a tensor is reduced, counted and clipped as it is. Used by `plan.explain`.

#include "plan/layout/reduction.hpp"
#include "plan/plan.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace gradsync::plan {

/// The stages of one planned tensor.
[[nodiscard]] std::vector<Stage> stages_of(const Plan& plan, std::uint32_t tensor);

/// "summed over dp (2 ranks), then divided by 2; equal on all 2 ranks after sync, counted once"
[[nodiscard]] std::string explain_tensor(const Plan& plan, std::uint32_t index);

[[nodiscard]] std::string explain_norm_group(const Plan& plan, std::size_t index);
[[nodiscard]] std::string explain_clip_group(const Plan& plan, std::size_t index);

}  // namespace gradsync::plan
