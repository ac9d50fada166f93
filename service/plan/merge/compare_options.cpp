#include "plan/make_plan.hpp"
#include "plan/merge/tensor_difference.hpp"

#include <fmt/format.h>

#include <string>

namespace gradsync::plan {

namespace {

Error mismatch(std::int64_t rank, std::string path, std::string message, std::string hint) {
  Error error = make_error(ErrorCode::PlanMismatch, std::move(message), std::move(hint));
  error.path = std::move(path);
  error.ranks = {0, rank};
  return error;
}

}  // namespace

Result<void> compare_options(std::span<const RankDeclaration* const> by_rank) {
  for (std::size_t rank = 1; rank < by_rank.size(); ++rank) {
    if (const auto found = difference_of(by_rank.front()->options, by_rank[rank]->options)) {
      const std::string name = found->field == "mode" ? "formula" : found->field;  // as the Python client says
      return mismatch(
          static_cast<std::int64_t>(rank),
          "options." + found->field,
          fmt::format("{} is {} on rank 0 and {} on rank {}", name, found->first, found->other, rank),
          "give every rank the same options"
      );
    }
  }
  return {};
}

}  // namespace gradsync::plan
