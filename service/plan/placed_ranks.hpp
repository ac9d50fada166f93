#pragma once
// What placements on a mesh come down to for every rank: who holds a tensor, and which cut of it. Tensors that are
// placed alike share one, so that a declaration of 100,000 tensors is looked at once per tensor and rank, not reasoned
// about.

#include "plan/declaration.hpp"
#include "plan/mesh.hpp"
#include "plan/reduction.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gradsync::plan {

/// Part `index` of `count` along a dim, as torch.chunk cuts: parts of ceil(extent / count), later ones short or empty.
struct Cut {
  std::size_t dim = 0;
  std::int64_t index = 0;
  std::int64_t count = 1;
};

/// What a rank holds of a tensor: offset and extent per dim.
struct Box {
  std::vector<std::int64_t> offset;
  std::vector<std::int64_t> extent;
  friend bool operator==(const Box&, const Box&) = default;
};

/// One rank under one placement list.
struct RankPlace {
  bool holds = true;      ///< every `only` admits its coordinates
  std::uint32_t box = 0;  ///< number of its box: the coordinate on all sharding axes, nesting order, first slowest
  std::vector<Cut> cuts;  ///< in nesting order: what is sharded before sync, then what sync scatters
};

/// The axes of size > 1 that do not replicate the tensor after sync; indices into the mesh, ascending.
struct AxisRoles {
  std::vector<std::size_t> sharding;
  std::vector<std::size_t> only;
};

struct PlacedRanks {
  std::vector<RankPlace> ranks;
  AxisRoles roles;
  std::int64_t boxes = 1;              ///< distinct boxes
  std::int64_t holders = 0;            ///< ranks that hold
  std::size_t input_cuts = 0;          ///< how many of the cuts there are before sync
  std::vector<Stage> stages;           ///< what is reduced, in sync order
  std::vector<std::int64_t> group_of;  ///< by rank: ranks with equal numbers are reduced together; −1: it does not hold

  /// Whether sync leaves a rank less than it had: its output is not its input then.
  [[nodiscard]] bool scatters() const;
};

/// Boxes are those after sync: partial → shard cuts, too. It does so after every `shard`, in the order of the stages,
/// so that a part of the result always lies in what its ranks had. For validated placements.
[[nodiscard]] PlacedRanks place_ranks(const TensorDeclaration& tensor, const Mesh& mesh);

/// The box that the cuts leave of a shape.
[[nodiscard]] Box box_of(const std::vector<std::int64_t>& shape, const std::vector<Cut>& cuts);

/// What a rank in that place holds before sync: as declared with `local_offset`, else what the cuts leave.
[[nodiscard]] Box input_box_of(const TensorDeclaration& tensor, const PlacedRanks& placed, const RankPlace& place);

/// And after it: what sync leaves of that.
[[nodiscard]] Box box_of(const TensorDeclaration& tensor, const PlacedRanks& placed, const RankPlace& place);

/// Equal for tensors for which `place_ranks` has the same result.
[[nodiscard]] std::string placement_key(const TensorDeclaration& tensor);

/// Where `only` placements put the tensor, as a text: what tells tensors of one name apart. Placed at every coordinate
/// of an axis is placed nowhere in particular.
[[nodiscard]] std::string only_key(const TensorDeclaration& tensor, const Mesh& mesh);

}  // namespace gradsync::plan
