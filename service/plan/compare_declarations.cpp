#include "base/assert.hpp"
#include "plan/compare_weights.hpp"
#include "plan/make_plan.hpp"
#include "plan/words.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <unordered_map>

namespace gradsync::plan {

namespace {

/// One field in which two declarations differ, both values in words.
struct Difference {
  std::string field;
  std::string first;
  std::string other;
};

std::string words(const std::string& text) { return fmt::format("'{}'", text); }

std::string words(DType dtype) { return std::string(name_of(dtype)); }

std::string words(ClipMode mode) { return std::string(name_of(mode)); }

std::string words(std::int64_t number) { return fmt::format("{}", number); }

std::string words(double number) { return fmt::format("{}", number); }

std::string words(const std::vector<std::int64_t>& numbers) { return words_of(numbers); }

std::string words(const std::vector<std::string>& names) { return words_of(names); }

std::string words(const std::optional<std::vector<std::int64_t>>& numbers) {
  return numbers ? words_of(*numbers) : "none";
}

std::string words(const std::optional<double>& number) { return words_of(number); }

std::string words(const std::optional<std::string>& name) { return words_of(name); }

template <typename T>
bool differs(Difference& difference, const char* field, const T& first, const T& other) {
  if (first == other) {
    return false;
  }
  difference = {field, words(first), words(other)};
  return true;
}

bool placements_differ(Difference& difference, const TensorDeclaration& first, const TensorDeclaration& other) {
  const auto at = [](const TensorDeclaration& tensor, std::size_t k) {
    return k < tensor.placements.size() ? words_of(tensor.placements[k]) : "none";
  };
  for (std::size_t k = 0; k < std::max(first.placements.size(), other.placements.size()); ++k) {
    const bool both = k < first.placements.size() && k < other.placements.size();
    if (!both || first.placements[k] != other.placements[k]) {
      difference = {fmt::format("placements[{}]", k), at(first, k), at(other, k)};
      return true;
    }
  }
  return false;
}

Difference difference_of(const TensorDeclaration& first, const TensorDeclaration& other) {
  Difference found;
  const bool any =
      differs(found, "name", first.name, other.name) || differs(found, "shape", first.shape, other.shape) ||
      differs(found, "local_shape", first.local_shape, other.local_shape) ||
      differs(found, "local_offset", first.local_offset, other.local_offset) ||
      differs(found, "dtype", first.dtype, other.dtype) || differs(found, "mesh", first.mesh, other.mesh) ||
      placements_differ(found, first, other) || differs(found, "divisor", first.divisor, other.divisor) ||
      differs(found, "tied", first.tied, other.tied) ||
      differs(found, "clip_group", first.clip_group, other.clip_group) ||
      differs(found, "layer", first.layer, other.layer) ||
      differs(found, "split_order", first.split_order, other.split_order);
  GRADSYNC_ASSERT(any, "tensors that compare unequal differ in a field that is compared here");
  return found;
}

Difference difference_of(const DeclareOptions& first, const DeclareOptions& other) {
  Difference found;
  if (differs(found, "accumulate", first.accumulate, other.accumulate) ||
      differs(found, "norm_type", first.norm_type, other.norm_type) || differs(found, "mode", first.mode, other.mode)) {
    return found;
  }
  const auto at = [](const DeclareOptions& options, std::size_t k) {
    return k < options.clip.size() ? fmt::format("'{}': {}", options.clip[k].group, words_of(options.clip[k].clip))
                                   : "none";
  };
  for (std::size_t k = 0; k < std::max(first.clip.size(), other.clip.size()); ++k) {
    const bool listed = k < first.clip.size() && k < other.clip.size();
    if (!listed || first.clip[k] != other.clip[k]) {
      return {fmt::format("clip[{}]", k), at(first, k), at(other, k)};
    }
  }
  GRADSYNC_ASSERT(false, "options that compare unequal differ in a field that is compared here");
}

Error mismatch(std::int64_t rank, std::string path, std::string message, std::string hint) {
  Error error = make_error(ErrorCode::PlanMismatch, std::move(message), std::move(hint));
  error.path = std::move(path);
  error.ranks = {0, rank};
  return error;
}

bool same_names_in_another_order(const RankDeclaration& first, const RankDeclaration& other) {
  const auto sorted = [](const RankDeclaration& declaration) {
    std::set<std::string_view> names;
    for (const TensorDeclaration& tensor : declaration.tensors) {
      names.insert(tensor.name);
    }
    return names;
  };
  return first.tensors.size() == other.tensors.size() && sorted(first) == sorted(other);
}

std::string counts(const RankDeclaration& first, const RankDeclaration& other, std::int64_t rank) {
  return first.tensors.size() == other.tensors.size() ? ""
                                                      : fmt::format(
                                                            " (rank 0 declared {} tensors, rank {} declared {})",
                                                            first.tensors.size(),
                                                            rank,
                                                            other.tensors.size()
                                                        );
}

Error tensor_mismatch(const RankDeclaration& first, const RankDeclaration& other, std::int64_t rank, std::size_t i) {
  const Difference found = difference_of(first.tensors[i], other.tensors[i]);
  const char* hint = "every rank declares the same tensors; check what differs between the ranks' models";
  if (found.field == "name" && same_names_in_another_order(first, other)) {
    hint = "the ranks declare the same tensors in another order: use one order on all of them";
  }
  Error error = mismatch(
      rank,
      fmt::format("tensors[{}].{}", i, found.field),
      fmt::format(
          "tensor {} ('{}'): {} is {} on rank 0 and {} on rank {}{}",
          i,
          first.tensors[i].name,
          found.field,
          found.first,
          found.other,
          rank,
          counts(first, other, rank)
      ),
      hint
  );
  error.tensor = first.tensors[i].name;
  return error;
}

Error count_mismatch(const RankDeclaration& first, const RankDeclaration& other, std::int64_t rank) {
  const bool more = other.tensors.size() > first.tensors.size();
  const std::size_t i = std::min(first.tensors.size(), other.tensors.size());
  const std::string& name = more ? other.tensors[i].name : first.tensors[i].name;
  Error error = mismatch(
      rank,
      fmt::format("tensors[{}]", i),
      fmt::format(
          "tensor {} ('{}') is declared on rank {} only{}", i, name, more ? rank : 0, counts(first, other, rank)
      ),
      "every rank declares the same tensors; a frozen parameter is left out on all ranks or on none"
  );
  error.tensor = name;
  return error;
}

Result<void> compare_with_first(const RankDeclaration& first, const RankDeclaration& other, std::int64_t rank) {
  if (first.options != other.options) {
    const Difference found = difference_of(first.options, other.options);
    return mismatch(
        rank,
        "options." + found.field,
        fmt::format("{} is {} on rank 0 and {} on rank {}", found.field, found.first, found.other, rank),
        "give every rank the same options"
    );
  }
  const std::size_t common = std::min(first.tensors.size(), other.tensors.size());
  for (std::size_t i = 0; i < common; ++i) {
    if (first.tensors[i] != other.tensors[i]) {
      return tensor_mismatch(first, other, rank, i);
    }
  }
  if (first.tensors.size() != other.tensors.size()) {
    return count_mismatch(first, other, rank);
  }
  return {};
}

}  // namespace

Result<void> compare_declarations(std::span<const RankDeclaration* const> by_rank) {
  for (std::size_t rank = 1; rank < by_rank.size(); ++rank) {
    const auto same = compare_with_first(*by_rank.front(), *by_rank[rank], static_cast<std::int64_t>(rank));
    if (!same) {
      return same.error();
    }
  }
  return compare_weights(by_rank);
}

}  // namespace gradsync::plan
