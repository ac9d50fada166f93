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
  lane.tensors.reserve(plan.tensors.size());
  for (const plan::PlannedTensor& tensor : plan.tensors) {
    device::LaneTensor entry;
    entry.offset_bytes = tensor.offset_bytes;
    entry.numel = static_cast<std::uint64_t>(tensor.numel);
    entry.bucket = tensor.bucket;
    entry.clip_group = tensor.clip_group;
    entry.layer = tensor.declaration.layer ? layers.at(*tensor.declaration.layer) : -1;
    lane.tensors.push_back(entry);
  }
  for (const plan::Bucket& bucket : plan.buckets) {
    device::LaneBucket entry;
    entry.dtype = bucket.dtype;
    entry.tensors = bucket.tensors;
    entry.groups = bucket.groups;
    entry.divisor = bucket.divisor;
    lane.buckets.push_back(std::move(entry));
  }
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
