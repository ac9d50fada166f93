#include "plan/merge/placed_ranks.hpp"

#include "base/assert.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <tuple>

namespace gradsync::plan {

namespace {

/// A placement with the axes it flattens, resolved on the mesh. The first named axis is the slowest.
struct Resolved {
  std::vector<std::size_t> axes;
  std::int64_t size = 1;

  [[nodiscard]] std::int64_t coordinate(const Mesh& mesh, const std::vector<std::int64_t>& at) const {
    std::int64_t flat = 0;
    for (const std::size_t axis : axes) {
      flat = flat * mesh.axes[axis].size + at[axis];
    }
    return flat;
  }
};

Resolved resolve(const Placement& placement, const Mesh& mesh) {
  Resolved resolved;
  for (const std::string& name : placement.axes) {
    const auto index = mesh.axis_index(name);
    GRADSYNC_ASSERT(index.has_value(), "a validated placement names axes of its mesh");
    resolved.axes.push_back(*index);
    resolved.size *= mesh.axes[*index].size;
  }
  return resolved;
}

/// A placement that leaves a rank a part: before sync, or by it.
struct Cutting {
  Shard shard;
  bool scatters = false;
};

std::optional<Cutting> cutting_of(const PlacementKind& kind) {
  if (const Shard* shard = std::get_if<Shard>(&kind)) {
    return Cutting{*shard, false};
  }
  const Partial* partial = std::get_if<Partial>(&kind);
  return partial != nullptr && partial->to_shard ? std::optional(Cutting{*partial->to_shard, true}) : std::nullopt;
}

/// An `only` placement: whether it admits each coordinate along its axes.
struct Admission {
  Resolved along;
  std::vector<bool> at;
};

struct Split {
  Resolved along;
  std::string axes;  ///< their names, "dp+tp"
  std::size_t dim = 0;
  bool scatters = false;     ///< these come last
  std::size_t position = 0;  ///< in nesting order, among its like
};

/// The position of a cut that sync makes is that of its stage. A cut before sync follows `split_order` where given,
/// else the order of the mesh's axes; of several flattened axes the first named counts.
std::size_t nesting_position(
    const Placement& placement,
    const Resolved& resolved,
    bool scatters,
    const TensorDeclaration& tensor,
    const Mesh& mesh
) {
  if (scatters) {
    return sync_position(placement, mesh);
  }
  if (tensor.split_order.empty()) {
    return resolved.axes.front();
  }
  const auto found = std::find(tensor.split_order.begin(), tensor.split_order.end(), placement.axes.front());
  return static_cast<std::size_t>(found - tensor.split_order.begin());
}

bool everywhere(const Only& only, const Resolved& along) {
  return static_cast<std::int64_t>(only.at.size()) == along.size;  // validated: distinct and in range
}

void note_axes(const Resolved& resolved, const Mesh& mesh, std::vector<std::size_t>& axes) {
  for (const std::size_t axis : resolved.axes) {
    if (mesh.axes[axis].size > 1) {
      axes.push_back(axis);
    }
  }
  std::sort(axes.begin(), axes.end());
}

/// Holders are reduced together that differ only along reduced axes.
void place_groups(PlacedRanks& placed, const Mesh& mesh) {
  std::vector<bool> reduced(mesh.axes.size(), false);
  for (const Stage& stage : placed.stages) {
    for (const std::string& axis : stage.axes) {
      reduced[*mesh.axis_index(axis)] = true;
    }
  }
  placed.group_of.resize(placed.ranks.size(), -1);
  for (std::size_t rank = 0; rank < placed.ranks.size(); ++rank) {
    if (!placed.ranks[rank].holds) {
      continue;
    }
    const std::vector<std::int64_t> at = mesh.coordinates(static_cast<std::int64_t>(rank));
    std::int64_t group = 0;  // row-major like the ranks: numbers ascend with the lowest rank
    for (std::size_t axis = 0; axis < mesh.axes.size(); ++axis) {
      group = reduced[axis] ? group : group * mesh.axes[axis].size + at[axis];
    }
    placed.group_of[rank] = group;
  }
}

Admission admission_of(const Only& only, Resolved along) {
  std::vector<bool> at(static_cast<std::size_t>(along.size), false);
  for (const std::int64_t coordinate : only.at) {
    at[static_cast<std::size_t>(coordinate)] = true;
  }
  return {std::move(along), std::move(at)};
}

/// The place of the rank at these coordinates. `splits` are in nesting order.
RankPlace place_of(
    const Mesh& mesh,
    const std::vector<std::int64_t>& at,
    std::span<const Admission> admissions,
    std::span<const Split> splits
) {
  RankPlace place;
  for (const Admission& admission : admissions) {
    place.holds = place.holds && admission.at[static_cast<std::size_t>(admission.along.coordinate(mesh, at))];
  }
  for (const Split& split : splits) {
    const std::int64_t index = split.along.coordinate(mesh, at);
    place.box = place.box * static_cast<std::uint32_t>(split.along.size) + static_cast<std::uint32_t>(index);
    place.cuts.push_back({split.dim, index, split.along.size});
  }
  return place;
}

}  // namespace

PlacedRanks place_ranks(const TensorDeclaration& tensor, const Mesh& mesh) {
  PlacedRanks placed;
  std::vector<Split> splits;
  std::vector<Admission> admissions;
  for (const Placement& placement : tensor.placements) {
    Resolved resolved = resolve(placement, mesh);
    if (const Only* only = std::get_if<Only>(&placement.kind)) {
      if (!everywhere(*only, resolved)) {
        note_axes(resolved, mesh, placed.roles.only);
        admissions.push_back(admission_of(*only, std::move(resolved)));
      }
    } else if (const auto cutting = cutting_of(placement.kind)) {
      note_axes(resolved, mesh, placed.roles.sharding);
      if (cutting->scatters && resolved.size == 1) {
        continue;  // no stage, no cut
      }
      const std::size_t position = nesting_position(placement, resolved, cutting->scatters, tensor, mesh);
      const auto dim = static_cast<std::size_t>(cutting->shard.dim);
      splits.push_back(
          {std::move(resolved), fmt::format("{}", fmt::join(placement.axes, "+")), dim, cutting->scatters, position}
      );
    }
  }
  std::stable_sort(splits.begin(), splits.end(), [](const Split& a, const Split& b) {
    return std::tie(a.scatters, a.position) < std::tie(b.scatters, b.position);
  });
  for (const Split& split : splits) {
    placed.boxes *= split.along.size;
    placed.cut_axes.push_back(split.axes);
    placed.input_cuts += split.scatters ? 0 : 1;
  }
  placed.stages = stages_of(tensor, mesh);
  placed.ranks.reserve(static_cast<std::size_t>(mesh.size()));
  for (std::int64_t rank = 0; rank < mesh.size(); ++rank) {
    placed.ranks.push_back(place_of(mesh, mesh.coordinates(rank), admissions, splits));
    placed.holders += placed.ranks.back().holds ? 1 : 0;
  }
  place_groups(placed, mesh);
  return placed;
}

bool PlacedRanks::scatters() const {
  return std::any_of(stages.begin(), stages.end(), [](const Stage& stage) { return stage.scatters; });
}

namespace {

void cut_down(Box& box, std::span<const Cut> cuts) {
  for (const Cut& cut : cuts) {
    std::int64_t& offset = box.offset[cut.dim];
    std::int64_t& extent = box.extent[cut.dim];
    const std::int64_t part = extent / cut.count + (extent % cut.count != 0 ? 1 : 0);
    const std::int64_t begin = std::min(part * cut.index, extent);  // index < count: no more than extent + part
    offset += begin;
    extent = std::min(part, extent - begin);
  }
}

}  // namespace

Box box_of(const std::vector<std::int64_t>& shape, const std::vector<Cut>& cuts) {
  Box box{std::vector<std::int64_t>(shape.size(), 0), shape};
  cut_down(box, cuts);
  return box;
}

Box input_box_of(const TensorDeclaration& tensor, const PlacedRanks& placed, const RankPlace& place) {
  if (tensor.local_offset) {
    return {*tensor.local_offset, tensor.local_shape};
  }
  Box box{std::vector<std::int64_t>(tensor.shape.size(), 0), tensor.shape};
  cut_down(box, std::span(place.cuts).first(placed.input_cuts));
  return box;
}

Box box_of(const TensorDeclaration& tensor, const PlacedRanks& placed, const RankPlace& place) {
  Box box = input_box_of(tensor, placed, place);
  cut_down(box, std::span(place.cuts).subspan(placed.input_cuts));
  return box;
}

std::string placement_key(const TensorDeclaration& tensor) {
  std::string key;
  const auto put = [&key](std::string_view text) {
    fmt::format_to(std::back_inserter(key), "{}:{}", text.size(), text);
  };
  put(tensor.mesh);
  for (const Placement& placement : tensor.placements) {
    key.push_back('|');
    for (const std::string& axis : placement.axes) {
      put(axis);
    }
    if (const Only* only = std::get_if<Only>(&placement.kind)) {
      fmt::format_to(std::back_inserter(key), "o{}", fmt::join(only->at, ","));
    } else if (const Partial* partial = std::get_if<Partial>(&placement.kind)) {
      key.push_back(partial->op == ReduceOp::Mean ? 'm' : 'p');
    } else if (std::holds_alternative<Replicate>(placement.kind)) {
      key.push_back('r');
    }
    if (const auto cutting = cutting_of(placement.kind)) {
      fmt::format_to(std::back_inserter(key), "s{}", cutting->shard.dim);
    }
  }
  key.push_back('/');
  for (const std::string& axis : tensor.split_order) {
    put(axis);
  }
  return key;
}

std::string only_key(const TensorDeclaration& tensor, const Mesh& mesh) {
  std::vector<std::string> entries;
  for (const Placement& placement : tensor.placements) {
    const Only* only = std::get_if<Only>(&placement.kind);
    if (only != nullptr && !everywhere(*only, resolve(placement, mesh))) {
      std::vector<std::int64_t> at = only->at;
      std::sort(at.begin(), at.end());
      entries.push_back(fmt::format("{}={}", fmt::join(placement.axes, "+"), fmt::join(at, ",")));
    }
  }
  std::sort(entries.begin(), entries.end());
  return fmt::format("{}", fmt::join(entries, " "));
}

}  // namespace gradsync::plan
