#include "engine/lane_plan.hpp"

#include <algorithm>
#include <map>
#include <tuple>

namespace gradsync::engine {

std::vector<std::string> layer_names(const plan::Plan& plan) {
  std::vector<std::string> names;
  std::map<std::string, std::int32_t> seen;
  for (const plan::PlannedTensor& tensor : plan.tensors) {
    const std::optional<std::string>& layer = tensor.declaration.layer;
    if (layer && seen.emplace(*layer, 0).second) {
      names.push_back(*layer);
    }
  }
  return names;
}

namespace {

std::map<std::string, std::int32_t> layer_numbers(const plan::Plan& plan) {
  std::map<std::string, std::int32_t> layers;
  for (const std::string& name : layer_names(plan)) {
    layers.emplace(name, static_cast<std::int32_t>(layers.size()));
  }
  return layers;
}

device::LanePlan lane_plan_of(const plan::Plan& plan) {
  const std::map<std::string, std::int32_t> layers = layer_numbers(plan);
  device::LanePlan lane;
  lane.world_size = plan.world_size;
  lane.norm_type = plan.options.norm_type;
  lane.clip_groups = static_cast<std::uint32_t>(plan.clip_groups.size());
  lane.layers = static_cast<std::uint32_t>(layers.size());
  lane.arenas.resize(1);
  lane.arena_of_rank.assign(static_cast<std::size_t>(plan.world_size), 0);
  lane.tensors.reserve(plan.tensors.size());
  for (const plan::Bucket& bucket : plan.buckets) {
    device::LaneBucket& entry = lane.buckets.emplace_back();
    entry.dtype = bucket.dtype;
    entry.tensors = bucket.tensors;
    entry.divisor = bucket.divisor;
    std::vector<device::LaneSum>& sums = lane.sums.emplace_back();
    for (const std::vector<std::int64_t>& group : bucket.groups) {
      device::LaneSum& sum = sums.emplace_back();
      for (const std::int64_t rank : group) {
        sum.sources.push_back({static_cast<std::uint32_t>(rank), 0});
      }
      sum.destinations = sum.sources;
    }
  }
  for (const plan::PlannedTensor& tensor : plan.tensors) {
    device::LaneTensor& entry = lane.tensors.emplace_back();
    entry.bucket = tensor.bucket;
    entry.clip_group = tensor.clip_group;
    entry.layer = tensor.declaration.layer ? layers.at(*tensor.declaration.layer) : -1;
    entry.first_part = static_cast<std::uint32_t>(lane.parts.size());
    entry.parts = 1;
    device::LanePart& part = lane.parts.emplace_back();
    part.tensor = static_cast<std::uint32_t>(lane.tensors.size() - 1);
    part.sums = tensor.bucket;
    part.elements = static_cast<std::uint64_t>(tensor.numel);
    part.run = part.elements;
    lane.arenas[0].input.push_back(tensor.offset_bytes);
  }
  lane.arenas[0].output = lane.arenas[0].input;
  return lane;
}

device::StatsPlan stats_plan_of(const plan::Plan& plan) {
  const std::map<std::string, std::int32_t> layers = layer_numbers(plan);
  device::StatsPlan lane;
  lane.world_size = plan.world_size;
  lane.norm_type = plan.options.norm_type;
  lane.clip_groups = static_cast<std::uint32_t>(plan.clip_groups.size());
  lane.layers = static_cast<std::uint32_t>(layers.size());
  lane.tensors.reserve(plan.tensors.size());
  for (const plan::PlannedTensor& tensor : plan.tensors) {
    device::StatsTensor& entry = lane.tensors.emplace_back();
    entry.clip_group = tensor.clip_group;
    entry.layer = tensor.declaration.layer ? layers.at(*tensor.declaration.layer) : -1;
    entry.counted = false;
    if (!tensor.counted_boxes.empty()) {
      const auto copy = static_cast<std::uint32_t>(lane.tensors.size() - 1);
      lane.ties.push_back({copy, tensor.counted_as, tensor.counted_boxes});
    }
    entry.holders.reserve(tensor.holdings.size());
    for (const plan::Holding& holding : tensor.holdings) {
      entry.holders.push_back({holding.rank, holding.row, holding.box, holding.elements});
    }
    std::sort(entry.holders.begin(), entry.holders.end(), [](const auto& a, const auto& b) {
      return std::tie(a.box, a.rank) < std::tie(b.box, b.rank);
    });
  }
  for (const plan::NormGroup& group : plan.norm_groups) {  // the norm set
    for (const std::uint32_t tensor : group.tensors) {
      lane.tensors[tensor].counted = true;
    }
  }
  return lane;
}

}  // namespace

LaneLayout lane_layout_of(const plan::Plan& plan) {
  if (plan.options.data_path == plan::DataPath::Stats) {
    return stats_plan_of(plan);
  }
  return lane_plan_of(plan);
}

}  // namespace gradsync::engine
