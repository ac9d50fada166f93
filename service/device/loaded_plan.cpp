#include "device/loaded_plan.hpp"

#include "device/device_error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace gradsync::device {

namespace {

void check(bool fits, const std::string& message) {
  if (!fits) {
    throw DeviceError("the plan does not fit: " + message);
  }
}

void check_groups(const LaneBucket& bucket, std::size_t index, std::size_t world) {
  std::vector<bool> seen(world);
  std::size_t members = 0;
  for (const auto& group : bucket.groups) {
    for (const std::int64_t rank : group) {
      check(
          rank >= 0 && static_cast<std::size_t>(rank) < world && !seen[static_cast<std::size_t>(rank)],
          fmt::format("buckets[{}].groups hold rank {} twice or it is not below {}", index, rank, world)
      );
      seen[static_cast<std::size_t>(rank)] = true;
      ++members;
    }
  }
  check(members == world, fmt::format("buckets[{}].groups hold {} ranks of {}", index, members, world));
}

void check_bucket(const LanePlan& layout, std::size_t index, std::vector<bool>& placed) {
  const LaneBucket& bucket = layout.buckets[index];
  check(
      std::isfinite(bucket.divisor) && bucket.divisor > 0,
      fmt::format("buckets[{}].divisor is {}, it must be finite and positive", index, bucket.divisor)
  );
  for (const std::uint32_t tensor : bucket.tensors) {
    check(
        tensor < layout.tensors.size() && !placed[tensor] && layout.tensors[tensor].bucket == index,
        fmt::format("tensor {} is not in bucket {} once and alone", tensor, index)
    );
    placed[tensor] = true;
  }
}

void check_tensor(const LanePlan& layout, std::size_t index, const std::vector<BufferView>& buffers) {
  const LaneTensor& tensor = layout.tensors[index];
  const std::uint64_t width = plan::size_of(layout.buckets[tensor.bucket].dtype);
  check(tensor.clip_group < layout.clip_groups, fmt::format("tensor {} is in clip group {}", index, tensor.clip_group));
  check(
      tensor.layer >= -1 && tensor.layer < static_cast<std::int64_t>(layout.layers),
      fmt::format("tensor {} is in layer {} of {}", index, tensor.layer, layout.layers)
  );
  check(
      tensor.offset_bytes % width == 0,
      fmt::format("tensor {} starts at byte {}, not a multiple of its element's {}", index, tensor.offset_bytes, width)
  );
  for (std::size_t rank = 0; rank < buffers.size(); ++rank) {
    const std::uint64_t size = buffers[rank].size_bytes;
    check(
        tensor.offset_bytes <= size && tensor.numel <= (size - tensor.offset_bytes) / width,
        fmt::format(
            "tensor {} ({} elements of {} bytes at byte {}) ends outside the {} bytes of rank {}",
            index,
            tensor.numel,
            width,
            tensor.offset_bytes,
            size,
            rank
        )
    );
  }
}

void check_layout(const LanePlan& layout, const std::vector<BufferView>& buffers) {
  check_buffers(layout.world_size, layout.norm_type, buffers);
  std::vector<bool> placed(layout.tensors.size());
  for (std::size_t bucket = 0; bucket < layout.buckets.size(); ++bucket) {
    check_groups(layout.buckets[bucket], bucket, buffers.size());
    check_bucket(layout, bucket, placed);
  }
  for (std::size_t tensor = 0; tensor < layout.tensors.size(); ++tensor) {
    check(placed[tensor], fmt::format("tensor {} is in no bucket", tensor));
    check_tensor(layout, tensor, buffers);
  }
}

}  // namespace

void check_buffers(std::int64_t world_size, double norm_type, const std::vector<BufferView>& buffers) {
  check(
      world_size >= 1 && static_cast<std::size_t>(world_size) == buffers.size(),
      fmt::format("world_size is {}, {} buffers are given", world_size, buffers.size())
  );
  for (std::size_t rank = 0; rank < buffers.size(); ++rank) {
    for (std::size_t other = 0; other < rank; ++other) {
      check(buffers[rank].data != buffers[other].data, fmt::format("ranks {} and {} share a buffer", other, rank));
    }
  }
  check(norm_type >= 1, fmt::format("norm_type is {}, it must be at least 1", norm_type));
}

LoadedPlan::LoadedPlan(LanePlan layout, std::vector<BufferView> buffers, std::size_t threads)
    : layout_(std::move(layout)), buffers_(std::move(buffers)) {
  check_layout(layout_, buffers_);
  table_ = make_chunk_table(layout_);
  const std::size_t slots = layout_.tensors.size() * world();
  tensors.resize(layout_.tensors.size());
  buckets.resize(layout_.buckets.size());
  for (std::size_t bucket = 0; bucket < buckets.size(); ++bucket) {
    buckets[bucket].unused_slots.reserve(layout_.buckets[bucket].tensors.size() * world());
  }
  chunk_stats.resize(table_.chunks.size());
  rescaled_chunks.reserve(table_.chunks.size());
  unused.resize(slots);
  nonfinite = std::vector<std::atomic<std::uint64_t>>(slots);
  differs = std::vector<std::atomic<std::uint8_t>>(slots);
  flagged = std::vector<std::atomic<std::uint8_t>>(layout_.tensors.size());
  pointers.resize(threads);
  for (Pointers& worker : pointers) {
    worker.sources.reserve(world());
    worker.destinations.reserve(world());
    worker.source_ranks.reserve(world());
    worker.nonfinite.resize(world());
  }
}

std::byte* LoadedPlan::address(const Chunk& chunk, std::int64_t rank) const {
  const LaneTensor& tensor = layout_.tensors[chunk.tensor];
  return buffers_[static_cast<std::size_t>(rank)].data + tensor.offset_bytes +
         chunk.first * plan::size_of(bucket_of(chunk.tensor).dtype);
}

bool LoadedPlan::contributed(std::uint32_t tensor, const std::vector<std::int64_t>& group) const {
  return std::any_of(group.begin(), group.end(), [&](std::int64_t rank) { return unused[slot(tensor, rank)] == 0; });
}

}  // namespace gradsync::device
