#include "plan/merge/compare_weights.hpp"

#include "base/text/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace gradsync::plan {

namespace {

constexpr std::size_t kMaxTensorsNamed = 20;

std::string rank_list(const std::vector<std::int64_t>& ranks) {
  std::vector<std::string> texts;
  for (const std::int64_t rank : ranks) {
    texts.push_back(fmt::format("{}", rank));
  }
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", enumerate_names(texts, 8));
}

using RanksByFingerprint = std::map<std::string_view, std::vector<std::int64_t>>;

/// Finds the boxes of which holders gave different fingerprints, or only some holders gave one. Each entry lists the
/// holders of a box by fingerprint.
std::vector<RanksByFingerprint> differing(Declarations by_rank, const MergedTensor& tensor, std::size_t boxes) {
  constexpr std::string_view kNone;

  struct First {
    std::string_view fingerprint;
    bool seen = false;
    bool differs = false;
  };

  std::vector<First> first(boxes);
  const auto fingerprint = [&](const Holding& holding) -> std::string_view {
    const std::string* given = weight_fingerprint_of(by_rank, holding);
    return given == nullptr ? kNone : *given;
  };
  bool any = false;
  for (const Holding& holding : tensor.holdings) {
    First& box = first[holding.box];
    box.differs = box.differs || (box.seen && box.fingerprint != fingerprint(holding));
    box.fingerprint = box.seen ? box.fingerprint : fingerprint(holding);
    box.seen = true;
    any = any || box.differs;
  }
  std::vector<RanksByFingerprint> found;
  for (std::size_t box = 0; any && box < boxes; ++box) {
    if (first[box].differs) {
      RanksByFingerprint& ranks = found.emplace_back();
      for (const Holding& holding : tensor.holdings) {
        if (holding.box == box) {
          ranks[fingerprint(holding)].push_back(holding.rank);
        }
      }
    }
  }
  return found;
}

std::size_t ranks_in(const RanksByFingerprint& ranks) {
  std::size_t count = 0;
  for (const auto& [fingerprint, holders] : ranks) {
    count += holders.size();
  }
  return count;
}

Error partly_given(const RanksByFingerprint& ranks, const std::string& name, std::size_t tensor) {
  const std::vector<std::int64_t>& without = ranks.at("");
  Error error = make_error(
      ErrorCode::PlanMismatch,
      fmt::format(
          "tensor {} ('{}'): {} of {} gave no weight fingerprint, the others did",
          tensor,
          name,
          rank_list(without),
          ranks_in(ranks)
      ),
      "give fingerprints on all ranks or on none"
  );
  error.path = fmt::format("tensors[{}].weight_fingerprint", tensor);
  error.tensor = name;
  error.ranks = without;
  return error;
}

/// The ranks outside a strict majority; every rank where no fingerprint has one.
std::vector<std::int64_t> suspects(const RanksByFingerprint& ranks) {
  const std::size_t all = ranks_in(ranks);
  std::vector<std::int64_t> outside;
  for (const auto& [value, holders] : ranks) {
    if (2 * holders.size() <= all) {
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

Result<void> compare_weights(Declarations by_rank, const Merged& merged) {
  const bool all_or_none = by_rank.front()->options.data_path == DataPath::Arena;
  std::vector<std::string> diverged;
  Error error;
  for (const MergedTensor& tensor : merged.tensors) {
    const std::string& name = declaration_of(by_rank, tensor.rank, tensor.row).name;
    const auto boxes = static_cast<std::size_t>(merged.placed_of(tensor).boxes);
    for (RanksByFingerprint& ranks : differing(by_rank, tensor, boxes)) {
      if (ranks.contains("") && all_or_none) {
        return partly_given(ranks, name, tensor.row);
      }
      ranks.erase("");
      if (ranks.size() < 2) {
        continue;
      }
      if (diverged.empty()) {
        error = make_error(
            ErrorCode::WeightsDiverged,
            fmt::format("weights of '{}' differ: fingerprint {}", name, who_has_what(ranks)),
            "start all replicas from the same weights: load one checkpoint, seed alike, or let rank 0 broadcast "
            "(attach with weights=\"broadcast\")"
        );
        error.path = fmt::format("tensors[{}].weight_fingerprint", tensor.row);
        error.tensor = name;
        error.ranks = suspects(ranks);
      }
      if (diverged.empty() || diverged.back() != name) {
        diverged.push_back(name);
      }
    }
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
