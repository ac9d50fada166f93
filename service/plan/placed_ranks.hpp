#pragma once
// What placements on a mesh come down to for every rank: who holds a tensor, and which cut of it. Tensors that are
// placed alike share one, so that a declaration of 100,000 tensors is looked at once per tensor and rank, not reasoned
// about.

#include "plan/declaration.hpp"
#include "plan/mesh.hpp"

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
  std::vector<Cut> cuts;  ///< in nesting order
};

/// The axes of size > 1 that do not replicate the tensor after sync; indices into the mesh, ascending.
struct AxisRoles {
  std::vector<std::size_t> sharding;
  std::vector<std::size_t> only;
};

struct PlacedRanks {
  std::vector<RankPlace> ranks;
  AxisRoles roles;
  std::int64_t boxes = 1;    ///< distinct boxes
  std::int64_t holders = 0;  ///< ranks that hold
};

/// After sync: partial → shard counts as shard. For validated placements.
[[nodiscard]] PlacedRanks place_ranks(const TensorDeclaration& tensor, const Mesh& mesh);

/// The box that the cuts leave of a shape.
[[nodiscard]] Box box_of(const std::vector<std::int64_t>& shape, const std::vector<Cut>& cuts);

/// What a rank in that place holds: as declared with `local_offset`, else what the cuts leave.
[[nodiscard]] Box box_of(const TensorDeclaration& tensor, const RankPlace& place);

/// Equal for tensors for which `place_ranks` has the same result.
[[nodiscard]] std::string placement_key(const TensorDeclaration& tensor);

/// Where `only` placements put the tensor, as a text: what tells tensors of one name apart. Placed at every coordinate
/// of an axis is placed nowhere in particular.
[[nodiscard]] std::string only_key(const TensorDeclaration& tensor, const Mesh& mesh);

}  // namespace gradsync::plan
