#include "plan/compare_weights.hpp"
#include "plan/make_plan.hpp"
#include "plan/tensor_difference.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <unordered_map>

namespace gradsync::plan {

namespace {

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
  const Difference found = *difference_of(first.tensors[i], other.tensors[i], Fields::All);
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

Result<void> compare_options(std::span<const RankDeclaration* const> by_rank) {
  for (std::size_t rank = 1; rank < by_rank.size(); ++rank) {
    if (const auto found = difference_of(by_rank.front()->options, by_rank[rank]->options)) {
      return mismatch(
          static_cast<std::int64_t>(rank),
          "options." + found->field,
          fmt::format("{} is {} on rank 0 and {} on rank {}", found->field, found->first, found->other, rank),
          "give every rank the same options"
      );
    }
  }
  return {};
}

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
