#include "device/math/chunk_table.hpp"

#include "device/device_error.hpp"
#include "device/math/chunk_math.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>

namespace gradsync::device {

namespace {

/// Bytes of one rank that a task covers: small beside the share of a thread, but no smaller than what memory likes to
/// be read in. Threads that take turns in shorter stretches spoil each other's prefetching (docs/performance.md).
constexpr std::uint64_t kFewestTaskBytes = 128U << 10;
constexpr std::uint64_t kShortTaskBytes = 256U << 10;  ///< no fewer where that leaves a task to each thread
constexpr std::uint64_t kMostTaskBytes = 512U << 10;
/// Where each value takes a logarithm: a task is how long another job waits, a millisecond or less.
constexpr std::uint64_t kSlowTaskBytes = 64U << 10;
constexpr std::uint64_t kTasksOfThread = 4;  ///< of a bucket, at least, where it is large enough
/// A task is not ended between parts that read the same stretch of the input, unless it is this large.
constexpr std::uint64_t kLargestTaskBytes = 1U << 20;

static_assert(kChunkElements <= std::numeric_limits<std::uint16_t>::max(), "a chunk counts in 16 bits");

/// Calls `take` with the place of each innermost row of runs in the input, in the order of the output.
template <typename Take>
void for_each_row(const LanePart& part, Take take) {
  const std::size_t outer = part.strides.empty() ? 0 : part.strides.size() - 1;
  std::vector<std::uint64_t> at(outer);
  std::uint64_t place = part.first;
  for (;;) {
    take(place);
    std::size_t level = 0;
    for (; level < outer; ++level) {
      const LaneStride& stride = part.strides[level + 1];
      if (++at[level] < stride.count) {
        place += stride.distance;
        break;
      }
      place -= (stride.count - 1) * stride.distance;
      at[level] = 0;
    }
    if (level == outer) {
      return;
    }
  }
}

class Cutting {
 public:
  Cutting(const LanePlan& plan, std::size_t threads, const std::vector<bool>* cut)
      : plan_(plan), threads_(threads), cut_(cut) {
    table_.of_tensor.resize(plan.tensors.size());
  }

  void add_tensor(std::uint32_t index) {
    const LaneTensor& tensor = plan_.tensors[index];
    const auto begin = static_cast<std::uint32_t>(table_.chunks.size());
    std::uint64_t longest = 1;
    for (std::uint32_t part = tensor.first_part; part < tensor.first_part + tensor.parts; ++part) {
      longest = std::max(longest, plan_.parts[part].run <= kChunkElements ? plan_.parts[part].run : 1);
    }
    for (std::uint32_t part = tensor.first_part; part < tensor.first_part + tensor.parts; ++part) {
      if (plan_.parts[part].elements != 0 && is_cut(part)) {
        cut(part, kChunkElements / longest);
      }
    }
    const auto end = static_cast<std::uint32_t>(table_.chunks.size());
    table_.of_tensor[index] = {begin, end};
    table_.work.resize(end);
    std::iota(table_.work.begin() + begin, table_.work.end(), begin);
    if (tensor.parts > 1) {
      std::sort(table_.work.begin() + begin, table_.work.end(), [&](std::uint32_t a, std::uint32_t b) {
        return std::tie(table_.chunks[a].source, a) < std::tie(table_.chunks[b].source, b);
      });
    }
  }

  void begin_bucket(const LaneBucket& bucket) {
    std::uint64_t bytes = 0;
    for (const std::uint32_t tensor : bucket.tensors) {
      const LaneTensor& held = plan_.tensors[tensor];
      for (std::uint32_t part = held.first_part; part < held.first_part + held.parts; ++part) {
        bytes += is_cut(part) ? plan_.parts[part].elements * plan::size_of(bucket.dtype) : 0;
      }
    }
    const std::uint64_t share = bytes / threads_;
    full_task_ =
        std::clamp(share / kTasksOfThread, std::clamp(share, kFewestTaskBytes, kShortTaskBytes), kMostTaskBytes);
    if (plan_.norm_type != 1 && plan_.norm_type != 2 && !std::isinf(plan_.norm_type)) {
      full_task_ = kSlowTaskBytes;
    }
    first_task_ = static_cast<std::uint32_t>(table_.tasks.size());
    task_bytes_ = full_task_;  // the first chunk opens a task
  }

  void add_to_tasks(std::uint32_t tensor, std::uint64_t width) {
    std::uint64_t stretch_end = 0;
    const ChunkRange range = table_.of_tensor[tensor];
    for (std::uint32_t at = range.begin; at < range.end; ++at) {
      const Chunk& chunk = table_.chunks[table_.work[at]];
      const bool apart = chunk.source >= stretch_end || task_bytes_ >= kLargestTaskBytes;
      if (task_bytes_ >= full_task_ && apart) {
        table_.tasks.push_back({at, at});
        task_bytes_ = 0;
      }
      table_.tasks.back().end = at + 1;
      task_bytes_ += chunk.count() * width;
      const std::uint64_t rows = chunk.runs == 1 ? 0 : (chunk.runs - 1) * plan_.parts[chunk.part].strides[0].distance;
      stretch_end = std::max(stretch_end, chunk.source + rows + chunk.run);
    }
  }

  void end_bucket() { table_.of_bucket.push_back({first_task_, static_cast<std::uint32_t>(table_.tasks.size())}); }

  ChunkTable take() { return std::move(table_); }

 private:
  [[nodiscard]] bool is_cut(std::uint32_t part) const { return cut_ == nullptr || (*cut_)[plan_.parts[part].sums]; }

  void cut(std::uint32_t index, std::uint64_t runs_at_once) {
    const LanePart& part = plan_.parts[index];
    const LaneStride inner = part.strides.empty() ? LaneStride{} : part.strides[0];
    std::uint64_t first = 0;
    for_each_row(part, [&](std::uint64_t place) {
      if (part.run > kChunkElements) {
        for (std::uint64_t run = 0; run < inner.count; ++run) {
          for (std::uint64_t at = 0; at < part.run; at += kChunkElements) {
            const std::uint64_t count = std::min<std::uint64_t>(kChunkElements, part.run - at);
            push({place + run * inner.distance + at, first, index, static_cast<std::uint16_t>(count)});
            first += count;
          }
        }
        return;
      }
      for (std::uint64_t run = 0; run < inner.count; run += runs_at_once) {
        const auto runs = static_cast<std::uint16_t>(std::min(runs_at_once, inner.count - run));
        push({place + run * inner.distance, first, index, static_cast<std::uint16_t>(part.run), runs});
        first += runs * part.run;
      }
    });
  }

  void push(Chunk chunk) {
    if (table_.chunks.size() == std::numeric_limits<std::uint32_t>::max()) {
      throw DeviceError("the plan does not fit: it has more than 2^32 chunks; its parts lie in too many short runs");
    }
    table_.chunks.push_back(chunk);
  }

  const LanePlan& plan_;
  std::size_t threads_;
  const std::vector<bool>* cut_;
  ChunkTable table_;
  std::uint64_t full_task_ = 0;  ///< bytes
  std::uint32_t first_task_ = 0;
  std::uint64_t task_bytes_ = 0;
};

}  // namespace

ChunkTable make_chunk_table(const LanePlan& plan, std::size_t threads, const std::vector<bool>* cut) {
  Cutting cutting(plan, threads, cut);
  for (const LaneBucket& bucket : plan.buckets) {
    cutting.begin_bucket(bucket);
    for (const std::uint32_t tensor : bucket.tensors) {
      cutting.add_tensor(tensor);
      cutting.add_to_tasks(tensor, plan::size_of(bucket.dtype));
    }
    cutting.end_bucket();
  }
  return cutting.take();
}

}  // namespace gradsync::device
