#pragma once
// Declarations of ranks that hold different tensors → one list of logical tensors (docs/adr/0008). Pure.

#include "base/error.hpp"
#include "plan/declaration.hpp"
#include "plan/merge/placed_ranks.hpp"
#include "plan/mesh/mesh.hpp"
#include "plan/plan.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace gradsync::plan {

/// One logical tensor: what its holders declared under one key (name, `only` placements).
struct MergedTensor {
  std::uint32_t rank = 0;                   ///< its lowest holder
  std::uint32_t row = 0;                    ///< the tensor's row in that rank's declaration
  std::uint32_t placed = 0;                 ///< index into Merged::placed
  std::vector<Holding> holdings;            ///< by rank
  std::uint32_t counted_as = 0;             ///< its own index, or that of the earlier tensor it is tied to
  std::vector<std::int32_t> counted_boxes;  ///< as PlannedTensor::counted_boxes
};

struct Merged {
  std::vector<MergedTensor> tensors;  ///< by first appearance, rank after rank
  std::vector<PlacedRanks> placed;    ///< one per distinct placement

  [[nodiscard]] const PlacedRanks& placed_of(const MergedTensor& tensor) const { return placed[tensor.placed]; }
};

using Declarations = std::span<const RankDeclaration* const>;  ///< one per rank, in rank order

[[nodiscard]] inline const TensorDeclaration& declaration_of(
    Declarations by_rank, std::uint32_t rank, std::uint32_t row
) {
  return by_rank[rank]->tensors[row];
}

/// The fingerprint of the weights that a rank holds, or null where it gave none.
[[nodiscard]] inline const std::string* weight_fingerprint_of(Declarations by_rank, const Holding& holding) {
  const std::vector<std::string>& all = by_rank[holding.rank]->weight_fingerprints;
  return all.empty() || all[holding.row].empty() ? nullptr : &all[holding.row];
}

/// For declarations that were validated one by one and have equal options. Checks that all holders and none but they
/// declare a tensor, alike, and that their boxes tile it. Errors: PlanMismatch (ranks differ, or a holder is missing),
/// InvalidDeclaration (boxes), WeightsDiverged.
[[nodiscard]] Result<Merged> merge_declarations(Declarations by_rank, const std::vector<Mesh>& meshes);

/// The boxes of one merged tensor: equal where only replicating axes differ, else disjoint and together the shape.
[[nodiscard]] Result<void> check_tiling(
    Declarations by_rank, const MergedTensor& tensor, const PlacedRanks& placed, const Mesh& mesh
);

}  // namespace gradsync::plan
