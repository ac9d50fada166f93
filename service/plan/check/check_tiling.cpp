#include "base/assert.hpp"
#include "plan/check/words.hpp"
#include "plan/merge/merge_declarations.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <unordered_map>

namespace gradsync::plan {

namespace {

Error refuse(
    const TensorDeclaration& tensor,
    std::uint32_t row,
    const char* field,
    std::vector<std::int64_t> ranks,
    const std::string& message,
    std::string hint
) {
  Error error =
      make_error(ErrorCode::InvalidDeclaration, fmt::format("tensor '{}': {}", tensor.name, message), std::move(hint));
  error.path = fmt::format("tensors[{}].{}", row, field);
  error.tensor = tensor.name;
  error.rank = ranks.front();
  error.ranks = std::move(ranks);
  return error;
}

std::string sharding_words(const TensorDeclaration& tensor) {
  std::vector<std::string> words;
  for (const Placement& placement : tensor.placements) {
    if (std::holds_alternative<Shard>(placement.kind)) {
      words.push_back(words_of(placement));
    }
  }
  return words.empty() ? "no placement cuts it" : fmt::format("{}", fmt::join(words, ", "));
}

/// "axis 'dp'": the axes of size > 1 on which two ranks differ.
std::string axes_between(const Mesh& mesh, std::uint32_t first, std::uint32_t other) {
  const std::vector<std::int64_t> here = mesh.coordinates(first);
  const std::vector<std::int64_t> there = mesh.coordinates(other);
  std::vector<std::string> axes;
  for (std::size_t k = 0; k < mesh.axes.size(); ++k) {
    if (here[k] != there[k]) {
      axes.push_back(fmt::format("'{}'", mesh.axes[k].name));
    }
  }
  return fmt::format("{} {}", axes.size() == 1 ? "axis" : "axes", fmt::join(axes, ", "));
}

/// Why a rank may hold something else than its cuts leave.
std::string local_shape_hint(const TensorDeclaration& tensor, const PlacedRanks& placed, const RankPlace& place) {
  if (tensor.local_shape == tensor.shape) {
    return "it is held whole: place those axes replicate, or declare the logical shape of which this is a shard";
  }
  for (std::size_t skipped = 0; skipped < placed.input_cuts; ++skipped) {
    std::vector<Cut> cuts(place.cuts.begin(), place.cuts.begin() + static_cast<std::ptrdiff_t>(placed.input_cuts));
    cuts.erase(cuts.begin() + static_cast<std::ptrdiff_t>(skipped));
    if (box_of(tensor.shape, cuts).extent == tensor.local_shape) {
      return fmt::format(
          "it looks as if axis '{}' of size {} did not cut dim {}: place it replicate, or check the shape",
          placed.cut_axes[skipped],
          place.cuts[skipped].count,
          place.cuts[skipped].dim
      );
    }
  }
  return "check shape, placements and split_order; a framework that cuts otherwise than torch.chunk gives local_offset";
}

/// A box with the rank that holds it first.
struct Held {
  Box box;
  std::uint32_t rank = 0;
  const TensorDeclaration* declared = nullptr;
};

Result<Box> box_held(const TensorDeclaration& tensor, const Holding& holding, const PlacedRanks& placed) {
  const RankPlace& place = placed.ranks[holding.rank];
  const Box input = input_box_of(tensor, placed, place);
  if (input.extent != tensor.local_shape) {
    return refuse(
        tensor,
        holding.row,
        "local_shape",
        {holding.rank},
        fmt::format(
            "rank {} holds {}, but of shape {} its placements ({}) leave it {}",
            holding.rank,
            words_of(tensor.local_shape),
            words_of(tensor.shape),
            sharding_words(tensor),
            words_of(input.extent)
        ),
        local_shape_hint(tensor, placed, place)
    );
  }
  return box_of(tensor, placed, place);
}

std::string words_of_box(const Box& box) { return fmt::format("{} at {}", words_of(box.extent), words_of(box.offset)); }

bool overlap(const Box& a, const Box& b) {
  for (std::size_t d = 0; d < a.offset.size(); ++d) {
    if (a.offset[d] + a.extent[d] <= b.offset[d] || b.offset[d] + b.extent[d] <= a.offset[d]) {
      return false;
    }
  }
  return true;
}

/// The dim along which the boxes begin at the most places: sorted by it few pairs are left to look at.
std::size_t sweep_dim(const std::vector<const Held*>& boxes, std::size_t dims) {
  std::size_t best = 0;
  std::size_t most = 0;
  for (std::size_t d = 0; d < dims; ++d) {
    std::set<std::int64_t> offsets;
    for (const Held* held : boxes) {
      offsets.insert(held->box.offset[d]);
    }
    if (offsets.size() > most) {
      most = offsets.size();
      best = d;
    }
  }
  return best;
}

/// `boxes` are of a tensor with dims.
Result<void> check_disjoint(
    const TensorDeclaration& tensor, const Mesh& mesh, std::uint32_t row, std::vector<const Held*>& boxes
) {
  const std::size_t dim = sweep_dim(boxes, tensor.shape.size());
  std::sort(boxes.begin(), boxes.end(), [dim](const Held* a, const Held* b) {
    return a->box.offset[dim] < b->box.offset[dim];
  });
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    const std::int64_t end = boxes[i]->box.offset[dim] + boxes[i]->box.extent[dim];
    for (std::size_t k = i + 1; k < boxes.size() && boxes[k]->box.offset[dim] < end; ++k) {
      if (overlap(boxes[i]->box, boxes[k]->box)) {
        return refuse(
            tensor,
            row,
            "local_offset",
            {boxes[i]->rank, boxes[k]->rank},
            fmt::format(
                "ranks {} and {} hold overlapping shards: {} and {}; they differ on {} ({})",
                boxes[i]->rank,
                boxes[k]->rank,
                words_of_box(boxes[i]->box),
                words_of_box(boxes[k]->box),
                axes_between(mesh, boxes[i]->rank, boxes[k]->rank),
                words_of(tensor.placements)
            ),
            "shards of ranks that differ on a sharding axis are disjoint; what ranks share is replicated"
        );
      }
    }
  }
  return {};
}

/// Disjoint, and together the shape. `boxes` are not empty.
Result<void> check_partition(
    const TensorDeclaration& tensor, const Mesh& mesh, std::uint32_t row, std::vector<const Held*> boxes
) {
  if (!tensor.shape.empty()) {
    if (const auto disjoint = check_disjoint(tensor, mesh, row, boxes); !disjoint) {
      return disjoint.error();
    }
  }
  std::int64_t covered = 0;  // of disjoint boxes inside the shape: no more than it has
  for (const Held* held : boxes) {
    covered += numel_of(held->box.extent);
  }
  const std::int64_t whole = numel_of(tensor.shape);
  if (covered != whole) {
    return refuse(
        tensor,
        row,
        "local_offset",
        {boxes.empty() ? 0 : boxes.front()->rank},
        fmt::format(
            "its shards ({}) hold {} of the {} elements of shape {}",
            words_of(tensor.placements),
            covered,
            whole,
            words_of(tensor.shape)
        ),
        "together the shards are the logical tensor: check shape, offsets and which ranks declare it"
    );
  }
  return {};
}

/// Ranks that are summed hold the same elements before sync. Without offsets they do by their placements.
Result<void> check_groups(
    Declarations by_rank, const MergedTensor& merged, const PlacedRanks& placed, const Mesh& mesh
) {
  std::unordered_map<std::int64_t, Held> first;
  for (const Holding& holding : merged.holdings) {
    const TensorDeclaration& tensor = declaration_of(by_rank, holding.rank, holding.row);
    Box box = input_box_of(tensor, placed, placed.ranks[holding.rank]);
    const auto [entry, fresh] = first.try_emplace(placed.group_of[holding.rank], Held{box, holding.rank, &tensor});
    if (!fresh && entry->second.box != box && numel_of(entry->second.box.extent) + numel_of(box.extent) > 0) {
      return refuse(
          tensor,
          holding.row,
          "local_offset",
          {entry->second.rank, holding.rank},
          fmt::format(
              "ranks {} and {} are summed over {}, but one holds {} and the other {}",
              entry->second.rank,
              holding.rank,
              axes_between(mesh, entry->second.rank, holding.rank),
              words_of_box(entry->second.box),
              words_of_box(box)
          ),
          "ranks that differ only along partial axes hold the same elements before sync"
      );
    }
  }
  return {};
}

Error parts_differ(
    const TensorDeclaration& tensor, std::uint32_t row, const Mesh& mesh, const Held& first, const Held& other
) {
  return refuse(
      tensor,
      row,
      "local_shape",
      {first.rank, other.rank},
      fmt::format(
          "by its placements ranks {} and {} hold the same part, but one holds {} and the other {}; they differ on {} "
          "({})",
          first.rank,
          other.rank,
          words_of_box(first.box),
          words_of_box(other.box),
          axes_between(mesh, first.rank, other.rank),
          words_of(tensor.placements)
      ),
      "ranks that differ only on axes that replicate a tensor hold the same part of it"
  );
}

/// The boxes of a tensor by number, each with the first rank that holds it; empty for a box that no rank holds.
struct HeldBoxes {
  std::vector<std::optional<Held>> by_number;
  bool as_cut = true;  ///< no rank gave an offset

  [[nodiscard]] std::vector<const Held*> with_elements() const {
    std::vector<const Held*> boxes;
    for (const std::optional<Held>& held : by_number) {
      if (held && numel_of(held->box.extent) > 0) {
        boxes.push_back(&*held);
      }
    }
    return boxes;
  }
};

Result<HeldBoxes> boxes_held(
    Declarations by_rank, const MergedTensor& merged, const PlacedRanks& placed, const Mesh& mesh
) {
  HeldBoxes boxes;
  boxes.by_number.resize(static_cast<std::size_t>(placed.boxes));
  for (const Holding& holding : merged.holdings) {
    const TensorDeclaration& tensor = declaration_of(by_rank, holding.rank, holding.row);
    std::optional<Held>& first = boxes.by_number[holding.box];
    if (first && first->declared == &tensor) {
      continue;  // shared, and cut alike: nothing else comes of it
    }
    Result<Box> box = box_held(tensor, holding, placed);
    if (!box) {
      return box.error();
    }
    boxes.as_cut = boxes.as_cut && !tensor.local_offset;
    Held held{std::move(*box), holding.rank, &tensor};
    if (!first) {
      first = std::move(held);
    } else if (first->box != held.box && numel_of(first->box.extent) + numel_of(held.box.extent) > 0) {
      return parts_differ(tensor, holding.row, mesh, *first, held);
    }
  }
  return boxes;
}

}  // namespace

Result<void> check_tiling(
    Declarations by_rank, const MergedTensor& merged, const PlacedRanks& placed, const Mesh& mesh
) {
  const Result<HeldBoxes> held = boxes_held(by_rank, merged, placed, mesh);
  if (!held) {
    return held.error();
  }
  std::vector<const Held*> boxes = held->with_elements();
  const TensorDeclaration& tensor = declaration_of(by_rank, merged.rank, merged.row);
  if (held->as_cut) {  // the cuts of torch.chunk tile by construction, once every holder has its part
    std::int64_t covered = 0;
    for (const Held* box : boxes) {
      covered += numel_of(box->box.extent);
    }
    GRADSYNC_ASSERT(covered == numel_of(tensor.shape), "the parts that all holders were cut tile the tensor");
    return {};
  }
  if (const auto groups = check_groups(by_rank, merged, placed, mesh); !groups) {
    return groups.error();
  }
  return check_partition(tensor, mesh, merged.row, std::move(boxes));
}

}  // namespace gradsync::plan
