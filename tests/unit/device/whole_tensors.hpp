#pragma once
// Layouts of data-parallel jobs: whole tensors that groups of ranks sum among themselves, in place, all ranks alike.

#include "device/lane.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace gradsync::device {

using Groups = std::vector<std::vector<std::int64_t>>;

inline std::vector<LaneSum> sums_of_groups(const Groups& groups) {
  std::vector<LaneSum> sums;
  for (const std::vector<std::int64_t>& group : groups) {
    LaneSum& sum = sums.emplace_back();
    for (const std::int64_t rank : group) {
      sum.sources.push_back({static_cast<std::uint32_t>(rank), 0});
    }
    sum.destinations = sum.sources;
  }
  return sums;
}

inline LanePlan empty_layout(std::int64_t world, double norm_type = 2) {
  LanePlan layout;
  layout.world_size = world;
  layout.norm_type = norm_type;
  layout.arenas.resize(1);
  layout.arena_of_rank.assign(static_cast<std::size_t>(world), 0);
  for (std::int64_t rank = 0; rank < world; ++rank) {
    layout.rank_buffers.push_back(static_cast<BufferId>(rank) + 1);
  }
  return layout;
}

/// Its tensors are summed by these groups.
inline void add_bucket(LanePlan& layout, plan::DType dtype, const Groups& groups, double divisor) {
  layout.buckets.push_back({dtype, {}, divisor});
  layout.sums.push_back(sums_of_groups(groups));
}

/// A tensor that begins at the same byte in every arena. Its first part is all of it.
inline void add_tensor(
    LanePlan& layout,
    std::uint32_t bucket,
    std::uint64_t numel,
    std::uint64_t offset_bytes,
    std::uint32_t clip_group = 0,
    std::int32_t layer = -1
) {
  const auto tensor = static_cast<std::uint32_t>(layout.tensors.size());
  const auto part = static_cast<std::uint32_t>(layout.parts.size());
  layout.buckets[bucket].tensors.push_back(tensor);
  layout.tensors.push_back({bucket, clip_group, layer, part, 1, {}});
  layout.parts.push_back({tensor, bucket, numel, 0, numel, {}});
  layout.arenas[0].input.push_back(offset_bytes);
  layout.arenas[0].output.push_back(offset_bytes);
  layout.clip_groups = std::max(layout.clip_groups, clip_group + 1);
  layout.layers = std::max(layout.layers, static_cast<std::uint32_t>(layer + 1));
}

}  // namespace gradsync::device
