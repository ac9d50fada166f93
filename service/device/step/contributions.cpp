#include "device/step/contributions.hpp"

#include "device/transfer/node_contributions.hpp"

#include <algorithm>

namespace gradsync::device {

namespace {

/// Calls `take` with each sum of elements to which no rank contributed, and its part's number.
template <typename Take>
void for_each_empty_sum(const LoadedPlan& plan, std::uint32_t index, Take take) {
  const LaneTensor& tensor = plan.layout().tensors[index];
  for (std::uint32_t part = tensor.first_part; part < tensor.first_part + tensor.parts; ++part) {
    if (plan.layout().parts[part].elements == 0) {
      continue;
    }
    for (const LaneSum& sum : plan.sums_of(plan.layout().parts[part])) {
      if (!plan.contributed(index, sum)) {
        take(part, sum);
      }
    }
  }
}

/// Finds which sums are counted, and whether the tensor is absent. If one sum of a part has a gradient and another has
/// none, their ranks will not take the same optimizer step.
void find_contributors(LoadedPlan& plan, std::uint32_t index) {
  const LaneTensor& tensor = plan.layout().tensors[index];
  bool present = false;
  for (std::uint32_t part = tensor.first_part; part < tensor.first_part + tensor.parts; ++part) {
    const std::vector<LaneSum>& sums = plan.sums_of(plan.layout().parts[part]);
    const auto counted =
        std::find_if(sums.begin(), sums.end(), [&](const LaneSum& sum) { return plan.contributed(index, sum); });
    plan.attempt().parts[part].counted_sum = static_cast<std::uint32_t>(counted - sums.begin());
    present = present || counted != sums.end();
  }
  plan.attempt().tensors[index].absent = !present;
  plan.count_elements(index);
  for (const std::uint32_t copy : tensor.copies) {
    plan.attempt().tensors[copy].absent = !present;
  }
  if (!present) {
    return;
  }
  for_each_empty_sum(plan, index, [&](std::uint32_t part, const LaneSum& sum) {
    if (plan.attempt().parts[part].counted_sum == plan.sums_of(plan.layout().parts[part]).size()) {
      return;
    }
    for (const LaneMember& member : sum.destinations) {
      plan.attempt().differs[plan.slot(index, member.rank)].store(1, std::memory_order_relaxed);
    }
    plan.flag(index);
  });
}

}  // namespace

void begin_attempt(LoadedPlan& plan, const ReduceBucket& command) {
  BucketState& state = plan.attempt().buckets[command.bucket];
  state.reduced.reset();
  for (const std::uint32_t slot : state.unused_slots) {
    plan.attempt().unused[slot] = 0;
  }
  state.unused_slots.clear();
  const std::vector<std::uint32_t>& tensors = plan.layout().buckets[command.bucket].tensors;
  if (state.has_findings()) {
    for (const std::uint32_t tensor : tensors) {
      plan.forget_findings(tensor);
    }
  }
  state.flagged.store(false, std::memory_order_relaxed);
  state.marked = !command.unused.empty();
  if (plan.nodes() != nullptr) {
    forget_sums(plan, command.bucket);
  }
  if (!state.marked) {
    return;
  }
  for (const UnusedTensor& unused : command.unused) {
    const std::size_t slot = plan.slot(unused.tensor, static_cast<std::uint32_t>(unused.rank));
    if (plan.attempt().unused[slot] == 0) {
      plan.attempt().unused[slot] = 1;
      state.unused_slots.push_back(static_cast<std::uint32_t>(slot));
    }
    plan.attempt().tensors[plan.counted_as(unused.tensor)].incomplete = true;
  }
  for (const std::uint32_t tensor : tensors) {
    if (plan.attempt().tensors[tensor].incomplete) {
      plan.nodes() == nullptr ? find_contributors(plan, tensor) : find_contributors_here(plan, tensor);
    }
  }
}

void report_missing(const LoadedPlan& plan, std::uint32_t tensor, StepMath& math) {
  MissingFinding missing{tensor, {}};
  for_each_empty_sum(plan, tensor, [&](std::uint32_t /*part*/, const LaneSum& sum) {
    for (const LaneMember& member : sum.destinations) {
      missing.ranks.push_back(member.rank);
    }
  });
  std::sort(missing.ranks.begin(), missing.ranks.end());
  missing.ranks.erase(std::unique(missing.ranks.begin(), missing.ranks.end()), missing.ranks.end());
  if (!missing.ranks.empty()) {
    math.missing.push_back(std::move(missing));
  }
}

}  // namespace gradsync::device
