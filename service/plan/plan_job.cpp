#include "base/hash.hpp"
#include "plan/canonical_text.hpp"
#include "plan/clip_groups.hpp"
#include "plan/make_plan.hpp"
#include "plan/merge_declarations.hpp"
#include "plan/norm_program.hpp"

namespace gradsync::plan {

namespace {

/// Nothing is moved: no buckets, no arena, only who holds what.
Plan plan_of(Declarations by_rank, Merged merged, const std::vector<Mesh>& meshes) {
  Plan plan;
  plan.world_size = static_cast<std::int64_t>(by_rank.size());
  plan.meshes = meshes;
  plan.options = by_rank.front()->options;
  plan.digest = digest(canonical_text(by_rank, merged, meshes));
  plan.tensors.reserve(merged.tensors.size());
  for (std::uint32_t i = 0; i < merged.tensors.size(); ++i) {
    const MergedTensor& tensor = merged.tensors[i];
    const PlacedRanks& placed = merged.placed_of(tensor);
    PlannedTensor planned;
    planned.declaration = declaration_of(by_rank, tensor.rank, tensor.row);
    planned.numel = numel_of(planned.declaration.local_shape);
    planned.boxes = placed.boxes;
    planned.replication = placed.holders / placed.boxes;
    planned.counted_elements = tensor.counted_as == i ? numel_of(planned.declaration.shape) : 0;
    planned.counted_as = tensor.counted_as;
    planned.counted_boxes = tensor.counted_boxes;
    planned.holdings = tensor.holdings;
    plan.tensors.push_back(std::move(planned));
  }
  plan_clip_groups(plan);
  plan_norm_program(plan, merged);
  return plan;
}

}  // namespace

Result<Plan> plan_job(
    Declarations by_rank, const std::vector<Mesh>& meshes, std::int64_t world_size, BucketSizes sizes
) {
  if (const Result<void> equal = compare_options(by_rank); !equal) {
    return equal.error();
  }
  if (by_rank.front()->options.data_path == DataPath::Arena) {
    if (const Result<void> equal = compare_declarations(by_rank); !equal) {
      return equal.error();
    }
    return make_plan(*by_rank.front(), meshes, world_size, sizes);
  }
  Result<Merged> merged = merge_declarations(by_rank, meshes);
  if (!merged) {
    return merged.error();
  }
  return plan_of(by_rank, std::move(*merged), meshes);
}

}  // namespace gradsync::plan
