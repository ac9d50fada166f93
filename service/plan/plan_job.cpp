#include "base/text/hash.hpp"
#include "plan/canonical_text.hpp"
#include "plan/clip/clip_groups.hpp"
#include "plan/interrupt.hpp"
#include "plan/layout/arena_layout.hpp"
#include "plan/layout/norm_program.hpp"
#include "plan/layout/plan_buckets.hpp"
#include "plan/layout/rank_sums.hpp"
#include "plan/make_plan.hpp"
#include "plan/merge/merge_declarations.hpp"

namespace gradsync::plan {

namespace {

/// Plans which rank holds which part, and the norm of all parts.
Plan plan_of(Declarations by_rank, const Merged& merged, const std::vector<Mesh>& meshes, BucketSizes sizes) {
  Plan plan;
  plan.world_size = static_cast<std::int64_t>(by_rank.size());
  plan.meshes = meshes;
  plan.options = by_rank.front()->options;
  plan.digest = digest(canonical_text(by_rank, merged, meshes, sizes));
  plan.tensors.reserve(merged.tensors.size());
  for (std::uint32_t i = 0; i < merged.tensors.size(); ++i) {
    interruption_point();
    const MergedTensor& tensor = merged.tensors[i];
    const PlacedRanks& placed = merged.placed_of(tensor);
    PlannedTensor planned;
    planned.declaration = declaration_of(by_rank, tensor.rank, tensor.row);
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

Result<Plan> plan_job(Declarations by_rank, const std::vector<Mesh>& meshes, BucketSizes sizes) {
  if (const Result<void> equal = compare_options(by_rank); !equal) {
    return equal.error();
  }
  const Result<Merged> merged = merge_declarations(by_rank, meshes);
  if (!merged) {
    return merged.error();
  }
  Plan plan = plan_of(by_rank, *merged, meshes, sizes);
  if (plan.options.data_path == DataPath::Arena) {
    if (const Result<void> summed = plan_sums(plan, by_rank, *merged); !summed) {
      return summed.error();
    }
    plan_buckets(plan, by_rank, *merged, sizes);
    plan_layouts(plan, by_rank, *merged);
  }
  return plan;
}

}  // namespace gradsync::plan
