#include "device/transfer/node_contributions.hpp"

#include <algorithm>

namespace gradsync::device {

namespace {

template <typename Take>
void for_each_part(const LoadedPlan& plan, std::uint32_t tensor, Take take) {
  const LaneTensor& of = plan.layout().tensors[tensor];
  for (std::uint32_t part = of.first_part; part < of.first_part + of.parts; ++part) {
    if (plan.layout().parts[part].elements != 0) {
      take(part, plan.sums_of(plan.layout().parts[part]));
    }
  }
}

}  // namespace

void forget_sums(LoadedPlan& plan, std::uint32_t bucket) {
  NodePlan& nodes = *plan.nodes();
  for (const std::uint32_t tensor : plan.layout().buckets[bucket].tensors) {
    for_each_part(plan, tensor, [&](std::uint32_t part, const std::vector<LaneSum>& sums) {
      std::fill_n(&nodes.known(part, 0), sums.size(), SumKnown::Nothing);
    });
    nodes.attempt.replica_nonfinite[tensor].store(0, std::memory_order_relaxed);
    nodes.attempt.replica_nan[tensor].store(0, std::memory_order_relaxed);
  }
}

void find_contributors_here(LoadedPlan& plan, std::uint32_t tensor) {
  const LaneTensor& of = plan.layout().tensors[tensor];
  bool present = false;
  for (std::uint32_t part = of.first_part; part < of.first_part + of.parts; ++part) {
    const LanePart& held = plan.layout().parts[part];
    const std::vector<LaneSum>& sums = plan.sums_of(held);
    const auto counted = std::ranges::find_if(sums, [&](const LaneSum& sum) { return plan.contributed(tensor, sum); });
    present = present || counted != sums.end();
    if (plan.nodes()->all_here[held.sums]) {
      plan.attempt().parts[part].counted_sum = static_cast<std::uint32_t>(counted - sums.begin());
    }
  }
  plan.attempt().tensors[tensor].absent = !present;
  for (const std::uint32_t copy : of.copies) {
    plan.attempt().tensors[copy].absent = !present;
  }
}

SumKnown known_of(const LoadedPlan& plan, std::uint32_t part, std::size_t sum) {
  const LanePart& of = plan.layout().parts[part];
  const SumPlace place = plan.nodes()->places[of.sums][sum];
  if (place != SumPlace::Elsewhere && plan.contributed(of.tensor, plan.sums_of(of)[sum])) {
    return SumKnown::Contributed;
  }
  return place == SumPlace::Here      ? SumKnown::Empty
         : place == SumPlace::Travels ? plan.nodes()->known(part, sum)
                                      : SumKnown::Nothing;
}

void note_result(LoadedPlan& plan, std::uint32_t part, std::size_t sum, bool contributed) {
  plan.nodes()->known(part, sum) = contributed ? SumKnown::Contributed : SumKnown::Empty;
  if (!contributed) {
    const std::uint32_t tensor = plan.layout().parts[part].tensor;
    plan.attempt().tensors[tensor].incomplete = true;
    plan.attempt().buckets[plan.layout().tensors[tensor].bucket].marked = true;
  }
}

void compare_contributions(LoadedPlan& plan, std::uint32_t bucket) {
  for (const std::uint32_t tensor : plan.layout().buckets[bucket].tensors) {
    if (!plan.attempt().tensors[tensor].incomplete) {
      continue;
    }
    for_each_part(plan, tensor, [&](std::uint32_t part, const std::vector<LaneSum>& sums) {
      bool some = false;
      for (std::size_t sum = 0; sum < sums.size(); ++sum) {
        some = some || known_of(plan, part, sum) == SumKnown::Contributed;
      }
      for (std::size_t sum = 0; some && sum < sums.size(); ++sum) {
        if (known_of(plan, part, sum) != SumKnown::Empty) {
          continue;
        }
        for (const LaneMember& member : sums[sum].destinations) {
          plan.attempt().differs[plan.slot(tensor, member.rank)].store(1, std::memory_order_relaxed);
          plan.flag(tensor);
        }
      }
    });
  }
}

}  // namespace gradsync::device
