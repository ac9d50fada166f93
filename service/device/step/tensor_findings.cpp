#include "device/step/tensor_findings.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace gradsync::device {

namespace {

/// Parts with equal copies are left out. Of a sum that nobody contributed to, the ranks are in `ranks` too.
void add_copies(const LoadedPlan& plan, std::uint32_t index, DivergenceFinding& finding) {
  const LaneTensor& tensor = plan.layout().tensors[index];
  const auto differs = [&](std::int64_t rank) { return std::ranges::binary_search(finding.ranks, rank); };
  for (std::uint32_t part = tensor.first_part; part < tensor.first_part + tensor.parts; ++part) {
    std::vector<std::int64_t> equal;
    std::vector<std::int64_t> others;
    for (const LaneSum& sum : plan.sums_of(plan.layout().parts[part])) {
      for (const LaneMember& member : sum.destinations) {
        if (member.copy == 0) {
          (differs(member.rank) ? others : equal).push_back(member.rank);
        }
      }
    }
    if (others.empty()) {
      continue;
    }
    // Those that differ from the counted sum need not be equal to each other.
    const bool known = equal.size() > others.size();
    finding.suspects.insert(finding.suspects.end(), others.begin(), others.end());
    std::vector<std::int64_t>& ranks = known ? finding.majority : finding.suspects;
    ranks.insert(ranks.end(), equal.begin(), equal.end());
  }
  if (tensor.parts == 0) {  // a tied copy, which is compared with what it is counted as
    finding.suspects = finding.ranks;
  }
  for (std::vector<std::int64_t>* ranks : {&finding.majority, &finding.suspects}) {
    std::ranges::sort(*ranks);
    ranks->erase(std::unique(ranks->begin(), ranks->end()), ranks->end());
  }
}

}  // namespace

void report_ranks(const LoadedPlan& plan, std::uint32_t index, StepMath& math) {
  NonfiniteFinding nonfinite{index, plan.attempt().tensors[index].sum.nonfinite, {}};
  DivergenceFinding divergence{index, {}};  // rank by rank, so its ranks are in order
  for (std::uint32_t rank = 0; rank < plan.world(); ++rank) {
    const std::size_t slot = plan.slot(index, rank);
    if (const std::uint64_t inputs = plan.attempt().nonfinite[slot].load(std::memory_order_relaxed); inputs != 0) {
      nonfinite.inputs.emplace_back(rank, inputs);
    }
    if (plan.attempt().differs[slot].load(std::memory_order_relaxed) != 0) {
      divergence.ranks.push_back(rank);
    }
  }
  if ((nonfinite.count != 0 || !nonfinite.inputs.empty()) && math.nonfinite.size() < kMaxFindings) {
    math.nonfinite.push_back(std::move(nonfinite));
  }
  if (!divergence.ranks.empty() && math.divergence.size() < kMaxFindings) {
    add_copies(plan, index, divergence);
    math.divergence.push_back(std::move(divergence));
  }
}

}  // namespace gradsync::device
