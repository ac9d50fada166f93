#include "engine/plan/lane_plan.hpp"

#include "plan/interrupt.hpp"

#include <algorithm>
#include <map>
#include <tuple>

namespace gradsync::engine {

std::vector<std::string> layer_names(const plan::Plan& plan) {
  std::vector<std::string> names;
  std::map<std::string, std::int32_t> seen;
  for (const plan::PlannedTensor& tensor : plan.tensors) {
    plan::interruption_point();
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

std::vector<device::LaneMember> members_of(const std::vector<plan::SumMember>& members) {
  std::vector<device::LaneMember> lane;
  lane.reserve(members.size());
  for (const plan::SumMember& member : members) {
    lane.push_back({member.rank, member.copy});
  }
  return lane;
}

void add_tensor(
    const plan::PlannedTensor& tensor,
    std::uint32_t index,
    const std::map<std::string, std::int32_t>& layers,
    device::LanePlan& lane
) {
  device::LaneTensor& entry = lane.tensors.emplace_back();
  entry.bucket = tensor.bucket;
  entry.clip_group = tensor.clip_group;
  entry.layer = tensor.declaration.layer ? layers.at(*tensor.declaration.layer) : -1;
  entry.first_part = static_cast<std::uint32_t>(lane.parts.size());
  entry.parts = static_cast<std::uint32_t>(tensor.parts.size());
  entry.copies = tensor.copies;
  for (const plan::PlannedPart& part : tensor.parts) {
    device::LanePart& laid = lane.parts.emplace_back();
    laid.tensor = index;
    laid.sums = part.sums;
    laid.elements = part.elements;
    laid.first = part.first;
    laid.run = part.run;
    for (const plan::Stride& stride : part.strides) {
      laid.strides.push_back({stride.count, stride.distance});
    }
  }
}

/// By tensor: the layout is by row.
device::LaneArena arena_of(const plan::ArenaLayout& layout, std::size_t tensors) {
  device::LaneArena arena;
  arena.input.assign(tensors, device::kNotHeld);
  arena.output.assign(tensors, device::kNotHeld);
  for (std::size_t row = 0; row < layout.tensors.size(); ++row) {
    plan::interruption_point();
    arena.input[layout.tensors[row]] = layout.input_offsets[row];
    arena.output[layout.tensors[row]] = layout.output_offsets[row];
  }
  return arena;
}

device::LanePlan lane_plan_of(const plan::Plan& plan) {
  const std::map<std::string, std::int32_t> layers = layer_numbers(plan);
  device::LanePlan lane;
  lane.world_size = plan.world_size;
  lane.norm_type = plan.options.norm_type;
  lane.clip_groups = static_cast<std::uint32_t>(plan.clip_groups.size());
  lane.layers = static_cast<std::uint32_t>(layers.size());
  lane.tensors.reserve(plan.tensors.size());
  for (std::uint32_t i = 0; i < plan.tensors.size(); ++i) {
    plan::interruption_point();
    add_tensor(plan.tensors[i], i, layers, lane);
  }
  for (const std::vector<plan::RankSum>& sums : plan.sums) {
    plan::interruption_point();
    lane.sums.emplace_back();
    for (const plan::RankSum& sum : sums) {
      lane.sums.back().push_back({members_of(sum.sources), members_of(sum.destinations)});
    }
  }
  for (const plan::Bucket& bucket : plan.buckets) {
    lane.buckets.push_back({bucket.dtype, bucket.tensors, bucket.divisor});
  }
  for (const plan::ArenaLayout& layout : plan.layouts) {
    lane.arenas.push_back(arena_of(layout, plan.tensors.size()));
  }
  lane.arena_of_rank = plan.layout_of;
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
    plan::interruption_point();
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
