#include "plan/compare_weights.hpp"

#include "base/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace gradsync::plan {

namespace {

constexpr std::size_t kMaxTensorsNamed = 20;

const std::string& fingerprint(const RankDeclaration& declaration, std::size_t tensor) {
  static const std::string kNone;
  return declaration.weight_fingerprints.empty() ? kNone : declaration.weight_fingerprints[tensor];
}

std::string rank_list(const std::vector<std::int64_t>& ranks) {
  std::vector<std::string> texts;
  for (const std::int64_t rank : ranks) {
    texts.push_back(fmt::format("{}", rank));
  }
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", enumerate_names(texts, 8));
}

using RanksByFingerprint = std::map<std::string_view, std::vector<std::int64_t>>;

RanksByFingerprint group_ranks(std::span<const RankDeclaration* const> by_rank, std::size_t tensor) {
  RanksByFingerprint ranks;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    ranks[fingerprint(*by_rank[rank], tensor)].push_back(static_cast<std::int64_t>(rank));
  }
  return ranks;
}

bool all_equal(std::span<const RankDeclaration* const> by_rank, std::size_t tensor) {
  const std::string& first = fingerprint(*by_rank.front(), tensor);
  return std::all_of(by_rank.begin(), by_rank.end(), [&](const RankDeclaration* declaration) {
    return fingerprint(*declaration, tensor) == first;
  });
}

Error partly_given(const RanksByFingerprint& ranks, const std::string& name, std::size_t tensor, std::int64_t world) {
  const std::vector<std::int64_t>& without = ranks.at("");
  Error error = make_error(
      ErrorCode::PlanMismatch,
      fmt::format(
          "tensor {} ('{}'): {} of {} gave no weight fingerprint, the others did",
          tensor,
          name,
          rank_list(without),
          world
      ),
      "give fingerprints on all ranks or on none"
  );
  error.path = fmt::format("tensors[{}].weight_fingerprint", tensor);
  error.tensor = name;
  error.ranks = without;
  return error;
}

/// The ranks outside a strict majority; every rank where no fingerprint has one.
std::vector<std::int64_t> suspects(const RanksByFingerprint& ranks, std::size_t world) {
  std::vector<std::int64_t> outside;
  for (const auto& [value, holders] : ranks) {
    if (2 * holders.size() <= world) {
      outside.insert(outside.end(), holders.begin(), holders.end());
    }
  }
  std::sort(outside.begin(), outside.end());
  return outside;
}

std::string who_has_what(const RanksByFingerprint& ranks) {
  constexpr std::size_t kShown = 4;
  std::vector<std::pair<std::int64_t, std::string>> parts;
  for (const auto& [value, holders] : ranks) {
    parts.emplace_back(holders.front(), fmt::format("{} on {}", value, rank_list(holders)));
  }
  std::sort(parts.begin(), parts.end());
  std::vector<std::string> texts;
  for (const auto& part : parts) {
    texts.push_back(part.second);
  }
  return enumerate_names(texts, kShown);
}

}  // namespace

Result<void> compare_weights(std::span<const RankDeclaration* const> by_rank) {
  if (by_rank.empty()) {
    return {};
  }
  const RankDeclaration& first = *by_rank.front();
  std::vector<std::string> diverged;
  Error error;
  for (std::size_t i = 0; i < first.tensors.size(); ++i) {
    if (all_equal(by_rank, i)) {
      continue;
    }
    const RanksByFingerprint ranks = group_ranks(by_rank, i);
    const std::string& name = first.tensors[i].name;
    if (ranks.contains("")) {
      return partly_given(ranks, name, i, static_cast<std::int64_t>(by_rank.size()));
    }
    if (diverged.empty()) {
      error = make_error(
          ErrorCode::WeightsDiverged,
          fmt::format("weights of '{}' differ: fingerprint {}", name, who_has_what(ranks)),
          "start all ranks from the same weights: load one checkpoint, seed alike, or let rank 0 broadcast "
          "(init=\"broadcast\")"
      );
      error.path = fmt::format("tensors[{}].weight_fingerprint", i);
      error.tensor = name;
      error.ranks = suspects(ranks, by_rank.size());
    }
    diverged.push_back(name);
  }
  if (diverged.empty()) {
    return {};
  }
  if (diverged.size() > 1) {
    error.message += fmt::format("; {} tensors differ in all", diverged.size());
  }
  diverged.resize(std::min(diverged.size(), kMaxTensorsNamed));
  error.tensors = std::move(diverged);
  return error;
}

}  // namespace gradsync::plan
