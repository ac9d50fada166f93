#pragma once
// declaration → plan, and the comparison of declarations. Pure; runs on the planner thread.

#include "base/error.hpp"
#include "plan/plan.hpp"

#include <cstdint>
#include <span>

namespace gradsync::plan {

struct BucketSizes {
  std::uint64_t first_bytes = 1u << 20;
  std::uint64_t bytes = 25u << 20;
};

/// One declaration of one rank, checked by itself: names unique, shapes, axes known and all placed, options in range.
/// Errors: InvalidDeclaration, UnsupportedPlacement, with path `tensors[i]…` and the tensor's name.
[[nodiscard]] Result<void> validate_declaration(const RankDeclaration& declaration, const std::vector<Mesh>& meshes);

/// Compares every rank's options with those of the first. Errors: PlanMismatch with the field and both values.
[[nodiscard]] Result<void> compare_options(std::span<const RankDeclaration* const> by_rank);

/// Compares every rank's tensors and weights with those of the first. The Span holds one declaration per rank, in rank
/// order. Errors: PlanMismatch with the first differing tensor and field and both values; WeightsDiverged with tensor
/// and ranks.
[[nodiscard]] Result<void> compare_declarations(std::span<const RankDeclaration* const> by_rank);

/// The canonical plan of declarations already validated and compared.
[[nodiscard]] Plan make_plan(
    const RankDeclaration& declaration, const std::vector<Mesh>& meshes, std::int64_t world_size, BucketSizes sizes
);

/// What the planner does with the declarations of all ranks, each validated by itself: compares or merges them, by the
/// data path, and makes the plan. Errors as `compare_options`, `compare_declarations` and `merge_declarations`.
[[nodiscard]] Result<Plan> plan_job(
    std::span<const RankDeclaration* const> by_rank,
    const std::vector<Mesh>& meshes,
    std::int64_t world_size,
    BucketSizes sizes
);

/// Digest of everything that a plan is made of (weights apart), so that plans with equal digests launch the same
/// buckets in the same order: 16 hex digits.
[[nodiscard]] std::string digest_of(
    const RankDeclaration& declaration, const std::vector<Mesh>& meshes, std::int64_t world_size, BucketSizes sizes
);

}  // namespace gradsync::plan
