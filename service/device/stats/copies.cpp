#include "device/stats/copies.hpp"

#include "device/stats/stats_row.hpp"

#include <algorithm>

namespace gradsync::device {

namespace {

/// Ranks whose rows agree with the first one's.
struct Alike {
  StatsRow row;
  std::vector<std::int64_t> ranks;
};

}  // namespace

void add_copies(const std::vector<std::pair<std::int64_t, StatsRow>>& holders, double p, DivergenceFinding& finding) {
  std::vector<Alike> found;
  for (const auto& [rank, row] : holders) {
    const auto same = std::ranges::find_if(found, [&](const Alike& alike) {
      return (alike.row.stamp == 0) == (row.stamp == 0) && agree(alike.row, row, p);
    });
    (same == found.end() ? found.emplace_back(Alike{row, {}}) : *same).ranks.push_back(rank);
  }
  if (found.size() < 2) {
    return;
  }
  for (const Alike& alike : found) {
    std::vector<std::int64_t>& ranks = 2 * alike.ranks.size() > holders.size() ? finding.majority : finding.suspects;
    ranks.insert(ranks.end(), alike.ranks.begin(), alike.ranks.end());
  }
}

}  // namespace gradsync::device
