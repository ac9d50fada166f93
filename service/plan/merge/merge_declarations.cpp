#include "plan/merge/merge_declarations.hpp"

#include "base/text/hash.hpp"
#include "plan/check/declaration_checks.hpp"
#include "plan/interrupt.hpp"
#include "plan/limits.hpp"
#include "plan/merge/compare_weights.hpp"
#include "plan/merge/merge_refusals.hpp"
#include "plan/merge/tied_copies.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace gradsync::plan {

namespace {

class Merger {
 public:
  Merger(Declarations by_rank, const std::vector<Mesh>& meshes) : by_rank_(by_rank) {
    for (const Mesh& mesh : meshes) {
      meshes_.emplace(mesh.name, &mesh);
    }
  }

  /// A list that ranks share is compared once, with those of the ranks before.
  Result<void> add_rank(std::uint32_t rank) {
    const TensorList& tensors = by_rank_[rank]->tensors;
    std::vector<std::size_t>& indices = indices_[tensors.identity()];
    for (std::uint32_t row = 0; row < tensors.size(); ++row) {
      interruption_point();
      if (row == indices.size()) {  // ranks mostly declare in one order: the neighbour is tried before the table
        const Result<std::size_t> index = index_of(rank, row, row == 0 ? 0 : indices.back() + 1);
        if (!index) {
          return index.error();
        }
        indices.push_back(*index);
      }
      if (const auto added = add_holding(merged_.tensors[indices[row]], rank, row); !added) {
        return added.error();
      }
    }
    return {};
  }

  /// Every rank that the placements name has declared.
  Result<void> check_holders() const {
    for (const MergedTensor& merged : merged_.tensors) {
      const PlacedRanks& placed = merged_.placed_of(merged);
      if (static_cast<std::int64_t>(merged.holdings.size()) != placed.holders) {
        return holders_missing(declaration_of(by_rank_, merged.rank, merged.row), merged, placed);
      }
    }
    return {};
  }

  /// The first of several tensors with one `tied` id is counted, and the others are compared with it.
  Result<void> tie() {
    std::unordered_map<std::string_view, std::uint32_t, KeyedHash> firsts;
    for (std::uint32_t i = 0; i < merged_.tensors.size(); ++i) {
      MergedTensor& merged = merged_.tensors[i];
      merged.counted_as = i;
      const TensorDeclaration& tensor = declaration_of(by_rank_, merged.rank, merged.row);
      if (!tensor.tied) {
        continue;
      }
      const auto [first, fresh] = firsts.emplace(*tensor.tied, i);
      merged.counted_as = first->second;
      const MergedTensor& counted = merged_.tensors[first->second];
      const TensorDeclaration& original = declaration_of(by_rank_, counted.rank, counted.row);
      if (original.shape != tensor.shape || original.dtype != tensor.dtype ||
          original.clip_group != tensor.clip_group) {
        return tied_differ(original, merged, tensor);
      }
      if (!fresh) {
        merged.counted_boxes = equal_boxes(by_rank_, merged_, counted, merged);
        if (const auto equal = compare_tied_weights(by_rank_, counted, merged); !equal) {
          return equal.error();
        }
      }
    }
    return {};
  }

  [[nodiscard]] Merged take() { return std::move(merged_); }

  [[nodiscard]] const Merged& merged() const { return merged_; }

 private:
  [[nodiscard]] std::string key_of(const TensorDeclaration& tensor) const {
    const std::string only = only_key(tensor, *meshes_.at(tensor.mesh));
    return only.empty() ? tensor.name : fmt::format("{}\n{}", tensor.name, only);
  }

  [[nodiscard]] bool same_key(const MergedTensor& merged, const TensorDeclaration& tensor) const {
    const TensorDeclaration& first = declaration_of(by_rank_, merged.rank, merged.row);
    return first.name == tensor.name && (first.placements == tensor.placements || key_of(first) == key_of(tensor));
  }

  Result<std::size_t> index_of(std::uint32_t rank, std::uint32_t row, std::size_t expected) {
    const TensorDeclaration& tensor = declaration_of(by_rank_, rank, row);
    const std::size_t index = find_or_add(tensor, rank, row, expected);
    const MergedTensor& merged = merged_.tensors[index];
    if (const auto found = difference_of(declaration_of(by_rank_, merged.rank, merged.row), tensor)) {
      return holders_differ(tensor, {merged.rank, rank}, row, *found);
    }
    return index;
  }

  Result<void> add_holding(MergedTensor& merged, std::uint32_t rank, std::uint32_t row) {
    const TensorDeclaration& tensor = declaration_of(by_rank_, rank, row);
    const PlacedRanks& placed = merged_.placed_of(merged);
    const RankPlace& place = placed.ranks[rank];
    if (!place.holds) {
      return not_placed_here(tensor, *meshes_.at(tensor.mesh), rank, row);
    }
    const std::int64_t left =
        placed.scatters() ? numel_of(box_of(tensor, placed, place).extent) : numel_of(tensor.local_shape);
    merged.holdings.push_back({rank, row, place.box, static_cast<std::uint64_t>(left)});
    return {};
  }

  std::size_t find_or_add(
      const TensorDeclaration& tensor, std::uint32_t rank, std::uint32_t row, std::size_t expected
  ) {
    if (expected < merged_.tensors.size() && same_key(merged_.tensors[expected], tensor)) {
      return expected;
    }
    const auto [entry, fresh] = index_.emplace(key_of(tensor), merged_.tensors.size());
    if (fresh) {
      MergedTensor merged;
      merged.rank = rank;
      merged.row = row;
      merged.placed = placed_index(tensor);
      merged.holdings.reserve(static_cast<std::size_t>(merged_.placed_of(merged).holders));
      merged_.tensors.push_back(std::move(merged));
    }
    return entry->second;
  }

  std::uint32_t placed_index(const TensorDeclaration& tensor) {
    const auto [entry, fresh] = placed_.emplace(placement_key(tensor), merged_.placed.size());
    if (fresh) {
      merged_.placed.push_back(place_ranks(tensor, *meshes_.at(tensor.mesh)));
    }
    return static_cast<std::uint32_t>(entry->second);
  }

  Declarations by_rank_;
  std::unordered_map<std::string_view, const Mesh*, KeyedHash> meshes_;
  Merged merged_;
  std::unordered_map<const void*, std::vector<std::size_t>> indices_;  ///< list → by row: the merged tensor
  std::unordered_map<std::string, std::size_t, KeyedHash> index_;      ///< key → tensor
  std::unordered_map<std::string, std::size_t, KeyedHash> placed_;     ///< placements → placed
};

/// The elements of a job are counted in 64 bits. That each rank holds few enough does not bound what all of them hold.
Result<void> check_elements(Declarations by_rank, const Merged& merged) {
  constexpr std::int64_t kMaxElements = std::int64_t{1} << 62;  // of a tensor: fewer, so that no sum passes 2^63
  std::int64_t elements = 0;
  for (const MergedTensor& tensor : merged.tensors) {
    const TensorDeclaration& declaration = declaration_of(by_rank, tensor.rank, tensor.row);
    elements += numel_of(declaration.shape);
    if (elements >= kMaxElements) {
      Error error = make_error(
          ErrorCode::InvalidDeclaration,
          fmt::format("the tensors up to '{}' have 2^62 elements or more together, over all ranks", declaration.name),
          "check the sizes"
      );
      error.path = "tensors";
      return error;
    }
  }
  return {};
}

Result<void> check_clip_groups(Declarations by_rank, const Merged& merged) {
  std::unordered_set<std::string_view, KeyedHash> used;
  for (const MergedTensor& tensor : merged.tensors) {
    used.insert(declaration_of(by_rank, tensor.rank, tensor.row).clip_group);
  }
  if (used.size() > kMaxClipGroups) {
    Error error = make_error(
        ErrorCode::InvalidDeclaration,
        fmt::format("the ranks declare {} clip groups, at most {} are allowed", used.size(), kMaxClipGroups),
        "clip tensors together: a group is what shares one coefficient"
    );
    error.path = "options.clip";
    return error;
  }
  if (used.empty()) {
    return {};  // no rank holds a tensor: the groups that are listed have the norm 0
  }
  const std::vector<ClipGroupOptions>& options = by_rank.front()->options.clip;
  for (std::size_t i = 0; i < options.size(); ++i) {
    if (!used.contains(options[i].group)) {
      std::vector<std::string> names(used.begin(), used.end());
      std::sort(names.begin(), names.end());
      return unused_clip_group(i, options[i].group, names);
    }
  }
  return {};
}

}  // namespace

Result<Merged> merge_declarations(Declarations by_rank, const std::vector<Mesh>& meshes) {
  Merger merger(by_rank, meshes);
  for (std::uint32_t rank = 0; rank < by_rank.size(); ++rank) {
    if (const auto added = merger.add_rank(rank); !added) {
      return added.error();
    }
  }
  if (const auto holders = merger.check_holders(); !holders) {
    return holders.error();
  }
  for (const MergedTensor& tensor : merger.merged().tensors) {
    interruption_point();
    const PlacedRanks& placed = merger.merged().placed_of(tensor);
    const std::string& mesh = declaration_of(by_rank, tensor.rank, tensor.row).mesh;
    if (const auto tiled = check_tiling(by_rank, tensor, placed, meshes[mesh_index(meshes, mesh)]); !tiled) {
      return tiled.error();
    }
  }
  if (const auto countable = check_elements(by_rank, merger.merged()); !countable) {
    return countable.error();
  }
  if (const auto equal = compare_weights(by_rank, merger.merged()); !equal) {
    return equal.error();
  }
  if (const auto groups = check_clip_groups(by_rank, merger.merged()); !groups) {
    return groups.error();
  }
  if (const auto tied = merger.tie(); !tied) {
    return tied.error();
  }
  return merger.take();
}

}  // namespace gradsync::plan
