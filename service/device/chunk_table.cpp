#include "device/chunk_table.hpp"

#include "device/chunk_math.hpp"

#include <algorithm>

namespace gradsync::device {

namespace {

/// Bytes of one rank that a task covers: large beside the cost of a claim, small beside the share of a thread.
constexpr std::uint64_t kTaskBytes = 128U << 10;

}  // namespace

ChunkTable make_chunk_table(const LanePlan& plan) {
  ChunkTable table;
  table.of_tensor.resize(plan.tensors.size());
  for (const LaneBucket& bucket : plan.buckets) {
    const auto first_task = static_cast<std::uint32_t>(table.tasks.size());
    const std::uint64_t width = plan::size_of(bucket.dtype);
    std::uint64_t task_bytes = kTaskBytes;  // the first chunk opens a task
    for (const std::uint32_t tensor : bucket.tensors) {
      const auto first_chunk = static_cast<std::uint32_t>(table.chunks.size());
      const std::uint64_t numel = plan.tensors[tensor].numel;
      for (std::uint64_t first = 0; first < numel; first += kChunkElements) {
        const auto count = static_cast<std::uint32_t>(std::min<std::uint64_t>(kChunkElements, numel - first));
        const auto chunk = static_cast<std::uint32_t>(table.chunks.size());
        if (task_bytes >= kTaskBytes) {
          table.tasks.push_back({chunk, chunk});
          task_bytes = 0;
        }
        table.chunks.push_back({tensor, count, first});
        table.tasks.back().end = chunk + 1;
        task_bytes += count * width;
      }
      table.of_tensor[tensor] = {first_chunk, static_cast<std::uint32_t>(table.chunks.size())};
    }
    table.of_bucket.push_back({first_task, static_cast<std::uint32_t>(table.tasks.size())});
  }
  return table;
}

}  // namespace gradsync::device
