#include "engine/report/largest_report.hpp"

#include "device/lane.hpp"
#include "plan/check/words.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

namespace gradsync::engine {

namespace {

constexpr double kLong = -2.2250738585072014e-308;  // no double has a longer text
constexpr auto kLongest = plan::StepAction::Raise;
constexpr auto kMost = std::numeric_limits<std::uint64_t>::max();
constexpr std::size_t kDigestBytes = 16;
constexpr std::size_t kBytesOfAHolder = 64;  // of what is found of a tensor, thrice its name apart: about

std::size_t length_of(const plan::PlannedTensor& tensor) {
  return 3 * tensor.declaration.name.size() + kBytesOfAHolder * tensor.holdings.size();
}

/// Indices of those of which most can be said, as many as a report names.
std::vector<std::uint32_t> longest_tensors(const plan::Plan& plan) {
  std::vector<std::uint32_t> all(plan.tensors.size());
  std::iota(all.begin(), all.end(), 0);
  const auto end = all.begin() + static_cast<std::ptrdiff_t>(std::min(all.size(), device::kMaxFindings));
  std::partial_sort(all.begin(), end, all.end(), [&plan](std::uint32_t a, std::uint32_t b) {
    const std::size_t of_a = length_of(plan.tensors[a]);
    const std::size_t of_b = length_of(plan.tensors[b]);
    return of_a != of_b ? of_a > of_b : a < b;
  });
  all.erase(end, all.end());
  return all;
}

void add_findings(const plan::Plan& plan, StepReport& report) {
  for (const std::uint32_t index : longest_tensors(plan)) {
    const plan::PlannedTensor& tensor = plan.tensors[index];
    const std::string& name = tensor.declaration.name;
    std::vector<std::int64_t> ranks;
    NonfiniteReport& nonfinite = report.nonfinite.emplace_back();
    nonfinite.tensor = name;
    nonfinite.count = kMost;
    for (const plan::Holding& holding : tensor.holdings) {
      ranks.push_back(holding.rank);
      nonfinite.inputs.push_back({holding.rank, kMost, std::numeric_limits<std::int64_t>::max()});
    }
    report.divergence.push_back({name, ranks, {}, ranks});  // a rank is in the majority, or a suspect
    report.missing.push_back({name, std::move(ranks)});
    report.absent_names.push_back(name);
  }
}

/// Rows of the rank that declared most.
std::size_t most_rows(const plan::Plan& plan) {
  if (plan.options.data_path == plan::DataPath::Stats) {
    return 0;  // absent tensors go by their names there
  }
  std::size_t rows = plan.rows_are_tensors ? plan.tensors.size() : 0;
  for (const plan::ArenaLayout& layout : plan.layouts) {
    rows = std::max(rows, layout.tensors.size());
  }
  return rows;
}

}  // namespace

StepReport largest_report(const plan::Plan& plan, const ReportConstants& constants) {
  StepReport report;
  report.step = std::numeric_limits<std::int64_t>::min();
  report.epoch = report.attempt = report.next_attempt = report.counted_elements = kMost;
  report.norm = report.threshold = report.coefficient = kLong;
  report.reason = std::string(plan::kReasonBytes, 'x');
  for (const plan::ClipGroup& group : plan.clip_groups) {
    if (group.name.size() > report.decided_by.size()) {
      report.decided_by = group.name;
    }
    GroupReport& entry = report.groups.emplace_back(GroupReport{
        group.name, kLong, kLong, kLong, false, report.reason, kLongest, false, {}});
    for (const plan::PolicyOptions& policy : group.clip.watch) {
      entry.watch.push_back({plan::words_of(policy), kLong, kLong, false, kLongest, false, report.reason});
    }
  }
  for (const SharedText& layer : constants.layers) {
    report.layers.push_back({layer, kLong});
  }
  report.stable_buckets.resize(plan.buckets.size());
  std::iota(report.stable_buckets.begin(), report.stable_buckets.end(), 0);
  report.collectives = static_cast<std::int64_t>(plan.buckets.size());
  report.data_path = constants.data_path;
  report.partial_sums = constants.partial_sums;
  report.policy_digest = std::string(kDigestBytes, 'x');
  report.scalar_collectives = constants.scalar_collectives;
  report.action = kLongest;
  report.timings = {kLong, kLong, kLong, kLong, kLong};
  add_findings(plan, report);
  report.absent.resize(most_rows(plan));
  std::iota(report.absent.begin(), report.absent.end(), 0);
  return report;
}

}  // namespace gradsync::engine
