#include "base/assert.hpp"
#include "plan/merge_declarations.hpp"
#include "plan/words.hpp"

#include <fmt/format.h>

#include <algorithm>
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
          "it looks as if one axis of size {} did not cut dim {}: place it replicate, or check the shape",
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

/// Disjoint, and together the shape. `boxes` are not empty.
Result<void> check_partition(const TensorDeclaration& tensor, std::uint32_t row, std::vector<const Held*> boxes) {
  if (!tensor.shape.empty()) {
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
                  "ranks {} and {} hold overlapping shards: {} and {}",
                  boxes[i]->rank,
                  boxes[k]->rank,
                  words_of_box(boxes[i]->box),
                  words_of_box(boxes[k]->box)
              ),
              "shards of ranks that differ on a sharding axis are disjoint; what ranks share is replicated"
          );
        }
      }
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
        fmt::format("its shards hold {} of the {} elements of shape {}", covered, whole, words_of(tensor.shape)),
        "together the shards are the logical tensor: check shape, offsets and which ranks declare it"
    );
  }
  return {};
}

/// Ranks that are summed hold the same elements before sync. Without offsets they do by their placements.
Result<void> check_groups(Declarations by_rank, const MergedTensor& merged, const PlacedRanks& placed) {
  std::unordered_map<std::int64_t, Held> first;
  for (const Holding& holding : merged.holdings) {
    const TensorDeclaration& tensor = declaration_of(by_rank, holding.rank, holding.row);
    Box box = input_box_of(tensor, placed, placed.ranks[holding.rank]);
    const auto [entry, fresh] = first.try_emplace(placed.group_of[holding.rank], Held{box, holding.rank});
    if (!fresh && entry->second.box != box && numel_of(entry->second.box.extent) + numel_of(box.extent) > 0) {
      return refuse(
          tensor,
          holding.row,
          "local_offset",
          {entry->second.rank, holding.rank},
          fmt::format(
              "ranks {} and {} are summed, but one holds {} and the other {}",
              entry->second.rank,
              holding.rank,
              words_of_box(entry->second.box),
              words_of_box(box)
          ),
          "ranks that differ only along partial axes hold the same elements before sync"
      );
    }
  }
  return {};
}

}  // namespace

Result<void> check_tiling(Declarations by_rank, const MergedTensor& merged, const PlacedRanks& placed) {
  std::vector<Held> first(static_cast<std::size_t>(placed.boxes));
  std::vector<bool> seen(static_cast<std::size_t>(placed.boxes), false);
  bool as_cut = true;
  for (const Holding& holding : merged.holdings) {
    const TensorDeclaration& tensor = declaration_of(by_rank, holding.rank, holding.row);
    Result<Box> box = box_held(tensor, holding, placed);
    if (!box) {
      return box.error();
    }
    as_cut = as_cut && !tensor.local_offset;
    Held& held = first[holding.box];
    if (!seen[holding.box]) {
      seen[holding.box] = true;
      held = {std::move(*box), holding.rank};
    } else if (held.box != *box && numel_of(held.box.extent) + numel_of(box->extent) > 0) {
      return refuse(
          tensor,
          holding.row,
          "local_shape",
          {held.rank, holding.rank},
          fmt::format(
              "by its placements ranks {} and {} hold the same part, but one holds {} and the other {}",
              held.rank,
              holding.rank,
              words_of_box(held.box),
              words_of_box(*box)
          ),
          "ranks that differ only on axes that replicate a tensor hold the same part of it"
      );
    }
  }
  std::vector<const Held*> boxes;
  for (std::size_t box = 0; box < first.size(); ++box) {
    if (seen[box] && numel_of(first[box].box.extent) > 0) {
      boxes.push_back(&first[box]);
    }
  }
  const TensorDeclaration& tensor = declaration_of(by_rank, merged.rank, merged.row);
  if (as_cut) {  // what torch.chunk cuts tiles by construction, once every holder has its part
    std::int64_t covered = 0;
    for (const Held* held : boxes) {
      covered += numel_of(held->box.extent);
    }
    GRADSYNC_ASSERT(covered == numel_of(tensor.shape), "the parts that all holders were cut tile the tensor");
    return {};
  }
  if (const auto groups = check_groups(by_rank, merged, placed); !groups) {
    return groups.error();
  }
  return check_partition(tensor, merged.row, std::move(boxes));
}

}  // namespace gradsync::plan
