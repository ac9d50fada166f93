#include "device/loaded/loaded_plan.hpp"

#include <algorithm>
#include <numeric>

namespace gradsync::device {

namespace {

/// More than the last level of cache that two CPUs share has on most machines.
constexpr std::uint64_t kCacheBytes = 128U << 20;

}  // namespace

LoadedPlan::LoadedPlan(LanePlan layout, const std::vector<BufferView>& buffers, std::size_t threads)
    : layout_(std::move(layout)), attempt_(NormTotals(layout_.norm_type, layout_.clip_groups, layout_.layers)) {
  check_layout(layout_, buffers);
  if (layout_.nodes.node_of_rank.empty()) {
    table_ = make_chunk_table(layout_, threads);
  } else {
    nodes_ = make_node_plan(layout_);
    table_ = make_chunk_table(layout_, threads, &nodes_->some_here);
    place_counted_chunks(layout_, *nodes_, table_);
  }
  for (std::size_t rank = 0; rank < buffers.size(); ++rank) {
    const LaneArena& arena = layout_.arenas[layout_.arena_of_rank[rank]];
    ranks_.push_back({buffers[rank].data, arena.input.data(), arena.output.data()});
  }
  counted_as_.resize(layout_.tensors.size());
  std::iota(counted_as_.begin(), counted_as_.end(), 0U);
  for (std::uint32_t tensor = 0; tensor < layout_.tensors.size(); ++tensor) {
    for (const std::uint32_t copy : layout_.tensors[tensor].copies) {
      counted_as_[copy] = tensor;
    }
  }
  reserve_attempt();
  reserve_pointers(threads);
  fits_caches_ = written_bytes() <= kCacheBytes;
}

void LoadedPlan::reserve_attempt() {
  const std::size_t slots = layout_.tensors.size() * world();
  attempt_.tensors.resize(layout_.tensors.size());
  attempt_.parts.resize(layout_.parts.size());
  attempt_.buckets = std::vector<BucketState>(layout_.buckets.size());
  for (std::size_t bucket = 0; bucket < layout_.buckets.size(); ++bucket) {
    attempt_.buckets[bucket].unused_slots.reserve(layout_.buckets[bucket].tensors.size() * world());
  }
  attempt_.chunk_stats.resize(table_.chunks.size());
  attempt_.rescaled_chunks.reserve(table_.chunks.size());
  attempt_.unused.resize(slots);
  attempt_.nonfinite = std::vector<std::atomic<std::uint64_t>>(slots);
  attempt_.differs = std::vector<std::atomic<std::uint8_t>>(slots);
  attempt_.flagged = std::vector<std::atomic<std::uint8_t>>(layout_.tensors.size());
  for (std::uint32_t tensor = 0; tensor < layout_.tensors.size(); ++tensor) {
    count_elements(tensor);
  }
}

void LoadedPlan::reserve_pointers(std::size_t threads) {
  std::size_t sources = 16;  // no less, so that workers do not share a cache line
  std::size_t destinations = 16;
  for (const std::vector<LaneSum>& sums : layout_.sums) {
    for (const LaneSum& sum : sums) {
      sources = std::max(sources, sum.sources.size());
      destinations = std::max(destinations, sum.destinations.size());
    }
  }
  sources = nodes_ == nullptr ? sources : std::max(sources, nodes_->most_sources);
  attempt_.pointers.resize(threads);
  for (ChunkPointers& worker : attempt_.pointers) {
    worker.sources.reserve(sources);
    worker.destinations.reserve(destinations);
    worker.source_slots.reserve(sources);
    worker.nonfinite.resize(sources);
  }
}

std::uint64_t LoadedPlan::written_bytes() const {
  std::uint64_t bytes = 0;
  for (const LanePart& part : layout_.parts) {
    for (const LaneSum& sum : sums_of(part)) {
      bytes += part.elements * plan::size_of(bucket_of(part.tensor).dtype) * sum.destinations.size();
    }
  }
  return bytes;
}

void LoadedPlan::forget_findings(std::uint32_t tensor) {
  TensorState& state = attempt_.tensors[tensor];
  state.absent = false;
  state.incomplete = false;
  const LaneTensor& layout = layout_.tensors[tensor];
  const auto first = attempt_.parts.begin() + layout.first_part;
  std::fill(first, first + layout.parts, PartState{});
  count_elements(tensor);
  if (attempt_.flagged[tensor].exchange(0, std::memory_order_relaxed) != 0) {
    for (std::uint32_t rank = 0; rank < world(); ++rank) {
      attempt_.nonfinite[slot(tensor, rank)].store(0, std::memory_order_relaxed);
      attempt_.differs[slot(tensor, rank)].store(0, std::memory_order_relaxed);
    }
  }
}

void LoadedPlan::count_elements(std::uint32_t tensor) {
  const LaneTensor& layout = layout_.tensors[tensor];
  std::uint64_t counted = 0;
  for (std::uint32_t part = layout.first_part; part < layout.first_part + layout.parts; ++part) {
    const LanePart& held = layout_.parts[part];
    counted += attempt_.parts[part].counted_sum < sums_of(held).size() ? held.elements : 0;
  }
  attempt_.tensors[tensor].counted_elements = counted;
}

bool LoadedPlan::contributed(std::uint32_t tensor, const LaneSum& sum) const {
  return std::any_of(sum.sources.begin(), sum.sources.end(), [&](const LaneMember& source) {
    return attempt_.unused[slot(tensor, source)] == 0;
  });
}

}  // namespace gradsync::device
