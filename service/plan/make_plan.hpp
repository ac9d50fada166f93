#pragma once
// declaration → plan, and the comparison of declarations. Pure; runs on planner threads.

#include "base/error.hpp"
#include "plan/plan.hpp"

#include <cstdint>
#include <span>

namespace gradsync::plan {

struct BucketSizes {
  std::uint64_t first_bytes = 1u << 20;
  std::uint64_t bytes = 25u << 20;
};

/// Checks one rank's declaration by itself: unique names, shapes, axes that are known and all placed, options in range.
/// Errors: InvalidDeclaration, UnsupportedPlacement, with path `tensors[i]…` and the tensor's name.
[[nodiscard]] Result<void> validate_declaration(const RankDeclaration& declaration, const std::vector<Mesh>& meshes);

/// Compares every rank's options with those of the first. Errors: PlanMismatch with the field and both values.
[[nodiscard]] Result<void> compare_options(std::span<const RankDeclaration* const> by_rank);

/// Merges the declarations of all ranks, one per rank in rank order, and makes the plan; each has been validated by
/// itself. Plans with equal digests launch the same buckets in the same order. Errors are those of `compare_options`
/// and `merge_declarations`, and PlanMismatch for tied copies that are not reduced alike.
[[nodiscard]] Result<Plan> plan_job(
    std::span<const RankDeclaration* const> by_rank, const std::vector<Mesh>& meshes, BucketSizes sizes
);

}  // namespace gradsync::plan
