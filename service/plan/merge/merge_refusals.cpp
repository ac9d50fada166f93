#include "plan/merge/merge_refusals.hpp"

#include "plan/check/words.hpp"
#include "plan/dtype.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace gradsync::plan {

namespace {

Error mismatch(
    const TensorDeclaration& tensor,
    std::string path,
    std::vector<std::int64_t> ranks,
    std::string message,
    std::string hint
) {
  Error error = make_error(ErrorCode::PlanMismatch, std::move(message), std::move(hint));
  error.path = std::move(path);
  error.ranks = std::move(ranks);
  error.tensor = tensor.name;
  return error;
}

}  // namespace

Error holders_differ(
    const TensorDeclaration& tensor, std::array<std::uint32_t, 2> ranks, std::uint32_t row, const Difference& found
) {
  Error error = mismatch(
      tensor,
      fmt::format("tensors[{}].{}", row, found.field),
      {ranks[0], ranks[1]},
      fmt::format(
          "tensor '{}': {} is {} on rank {} and {} on rank {}",
          tensor.name,
          found.field,
          found.first,
          ranks[0],
          found.other,
          ranks[1]
      ),
      "a name is one tensor on all its holders: give different tensors different names, or `only` placements that tell "
      "them apart"
  );
  error.rank = ranks[1];
  return error;
}

Error not_placed_here(const TensorDeclaration& tensor, const Mesh& mesh, std::uint32_t rank, std::uint32_t row) {
  const std::vector<std::int64_t> at = mesh.coordinates(rank);
  std::vector<std::string> coordinates;
  for (std::size_t axis = 0; axis < at.size(); ++axis) {
    coordinates.push_back(fmt::format("{}={}", mesh.axes[axis].name, at[axis]));
  }
  std::vector<std::string> onlys;
  for (const Placement& placement : tensor.placements) {
    if (std::holds_alternative<Only>(placement.kind)) {
      onlys.push_back(words_of(placement));
    }
  }
  Error error = mismatch(
      tensor,
      fmt::format("tensors[{}].placements", row),
      {rank},
      fmt::format(
          "tensor '{}' is declared by rank {} at {}, where '{}' does not put it",
          tensor.name,
          rank,
          fmt::join(coordinates, " "),
          fmt::join(onlys, "; ")
      ),
      "declare it where it exists, or name that coordinate too"
  );
  error.rank = rank;
  return error;
}

Error holders_missing(const TensorDeclaration& tensor, const MergedTensor& merged, const PlacedRanks& placed) {
  std::vector<std::int64_t> missing;
  std::size_t next = 0;
  for (std::uint32_t rank = 0; rank < placed.ranks.size(); ++rank) {
    if (next < merged.holdings.size() && merged.holdings[next].rank == rank) {
      ++next;
    } else if (placed.ranks[rank].holds) {
      missing.push_back(rank);
    }
  }
  constexpr std::size_t kNamed = 20;
  const std::size_t more = missing.size() - std::min(missing.size(), kNamed);
  missing.resize(std::min(missing.size(), kNamed));
  const bool few = 2 * merged.holdings.size() <= static_cast<std::size_t>(placed.holders);
  std::vector<std::int64_t> odd = missing;  // the smaller side is the likelier culprit
  if (few) {
    odd.clear();
    for (const Holding& holding : merged.holdings) {
      odd.push_back(holding.rank);
    }
    odd.resize(std::min(odd.size(), kNamed));
  }
  Error error = mismatch(
      tensor,
      fmt::format("tensors[{}]", merged.row),
      odd,
      fmt::format(
          "tensor '{}' is declared by {} of the {} ranks that its placements name{}; rank{} {}{} did not declare it",
          tensor.name,
          merged.holdings.size(),
          placed.holders,
          few ? fmt::format(" (rank{} {})", odd.size() > 1 ? "s" : "", fmt::join(odd, ", ")) : "",
          missing.size() > 1 ? "s" : "",
          fmt::join(missing, ", "),
          more > 0 ? fmt::format(" and {} more", more) : ""
      ),
      "see what differs between the ranks' models; a frozen parameter is left out on all its holders, and what exists "
      "at some coordinates of an axis alone is placed only(i…) there"
  );
  error.rank = merged.rank;
  return error;
}

Error tied_differ(const TensorDeclaration& counted, const MergedTensor& merged, const TensorDeclaration& tensor) {
  Error error = mismatch(
      tensor,
      fmt::format("tensors[{}].tied", merged.row),
      {merged.rank},
      fmt::format(
          "tensors '{}' and '{}' are tied by '{}', but one is {} {} in clip group '{}' and the other {} {} in '{}'",
          counted.name,
          tensor.name,
          *tensor.tied,
          name_of(counted.dtype),
          words_of(counted.shape),
          counted.clip_group,
          name_of(tensor.dtype),
          words_of(tensor.shape),
          tensor.clip_group
      ),
      "tied tensors are one weight: equal shape, dtype and clip group"
  );
  error.rank = merged.rank;
  return error;
}

Error tied_reduced_otherwise(
    const TensorDeclaration& counted, const MergedTensor& merged, const TensorDeclaration& tensor
) {
  const auto words = [](const TensorDeclaration& of) {
    std::vector<std::string> placements;
    for (const Placement& placement : of.placements) {
      placements.push_back(words_of(placement));
    }
    return fmt::format(
        "{} on mesh '{}'{}",
        fmt::join(placements, ", "),
        of.mesh,
        of.divisor ? fmt::format(", divided by {}", *of.divisor) : ""
    );
  };
  Error error = mismatch(
      tensor,
      fmt::format("tensors[{}].tied", merged.row),
      {merged.rank},
      fmt::format(
          "tensors '{}' and '{}' are tied by '{}' and so summed, but one is {} and the other {}",
          counted.name,
          tensor.name,
          *tensor.tied,
          words(counted),
          words(tensor)
      ),
      "place the copies of one weight alike on one mesh, axes in one order, and cut them alike; only the one "
      "coordinate of "
      "`only` at which each is may differ"
  );
  error.rank = merged.rank;
  return error;
}

}  // namespace gradsync::plan
