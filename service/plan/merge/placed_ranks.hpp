#pragma once
// The meaning of placements for every rank of a mesh: whether it holds the tensor, and which cut of it. Tensors that
// are placed alike share one value, so that a declaration of 100,000 tensors is looked at once per tensor and rank, and
// its placements are worked out only once.

#include "plan/declaration.hpp"
#include "plan/layout/reduction.hpp"
#include "plan/mesh/mesh.hpp"

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

/// The box of a tensor that a rank holds: offset and extent per dim.
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
  std::int64_t boxes = 1;             ///< distinct boxes
  std::int64_t holders = 0;           ///< ranks that hold
  std::vector<std::string> cut_axes;  ///< "dp" or "dp+tp" for each cut
  std::size_t input_cuts = 0;         ///< how many of the cuts there are before sync
  std::vector<Stage> stages;          ///< the reductions, in sync order
  std::vector<std::int64_t> group_of;  ///< by rank: ranks with equal numbers are reduced together; −1: it does not hold

  /// Whether sync leaves a rank less than it had: its output is not its input then.
  [[nodiscard]] bool scatters() const;
};

/// Boxes are those after sync: partial → shard cuts, too. It does so after every `shard`, in the order of the stages,
/// so that a part of the result always lies in what its ranks had. For validated placements.
[[nodiscard]] PlacedRanks place_ranks(const TensorDeclaration& tensor, const Mesh& mesh);

/// The box that the cuts leave of a shape.
[[nodiscard]] Box box_of(const std::vector<std::int64_t>& shape, const std::vector<Cut>& cuts);

/// The box that a rank in that place holds before sync: the declared one with `local_offset`, else the one that the
/// cuts leave.
[[nodiscard]] Box input_box_of(const TensorDeclaration& tensor, const PlacedRanks& placed, const RankPlace& place);

/// The box that sync leaves of that.
[[nodiscard]] Box box_of(const TensorDeclaration& tensor, const PlacedRanks& placed, const RankPlace& place);

/// Equal for tensors for which `place_ranks` has the same result.
[[nodiscard]] std::string placement_key(const TensorDeclaration& tensor);

/// The coordinates to which `only` placements bind the tensor, as a text; it distinguishes tensors of one name. A
/// tensor that is placed at every coordinate of an axis is not bound to any of them.
[[nodiscard]] std::string only_key(const TensorDeclaration& tensor, const Mesh& mesh);

}  // namespace gradsync::plan
