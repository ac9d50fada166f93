#pragma once
// The reduction of one tensor, derived from its placements on one mesh. Pure; used by the plan and its explanation.

#include "plan/declaration.hpp"
#include "plan/mesh/mesh.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace gradsync::plan {

/// One step of a reduction: the axes of one partial placement taken as one.
struct Stage {
  std::vector<std::string> axes;  ///< only axes of size > 1
  ReduceOp op = ReduceOp::Sum;
  std::int64_t size = 1;  ///< ranks summed
  bool scatters = false;  ///< a reduce-scatter: each of them keeps its part; else an all-reduce
  friend bool operator==(const Stage&, const Stage&) = default;
};

/// Stages in the mesh's sync order: its own, or tp, ep, cp, dp_shard, dp_replicate, then the other axes as they stand.
[[nodiscard]] std::vector<Stage> stages_of(const TensorDeclaration& tensor, const Mesh& mesh);

/// The position of a placement in the mesh's sync order: that of the first of its axes of size > 1.
[[nodiscard]] std::size_t sync_position(const Placement& placement, const Mesh& mesh);

/// The axes of all stages, in sync order. Axes of size 1 never count.
[[nodiscard]] std::vector<std::string> reduced_axes(const TensorDeclaration& tensor, const Mesh& mesh);

/// Applied once after all sums: the declared divisor, else the product of the sizes of all mean axes.
[[nodiscard]] double divisor_of(const TensorDeclaration& tensor, const Mesh& mesh);

/// Ranks that are reduced together: one group per coordinate of the other axes, ordered by lowest rank, ascending
/// inside.
[[nodiscard]] std::vector<std::vector<std::int64_t>> reduction_groups(
    const Mesh& mesh, const std::vector<std::string>& axes
);

}  // namespace gradsync::plan
