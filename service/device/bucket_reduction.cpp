#include "device/bucket_reduction.hpp"

#include "device/chunk_reference.hpp"
#include "device/chunk_sums.hpp"
#include "device/device_error.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

namespace gradsync::device {

namespace {

PowerKind power_kind(double p) { return p == 2 ? PowerKind::Two : p == 1 ? PowerKind::One : PowerKind::None; }

class Reduction final : public PoolJob {
 public:
  Reduction(LoadedPlan& plan, const ReduceBucket& command, const std::atomic<bool>& cancel)
      : plan_(plan),
        bucket_(plan.layout().buckets[command.bucket]),
        tasks_(plan.table().of_bucket[command.bucket]),
        compare_(command.compare),
        cancel_(cancel) {}

  [[nodiscard]] std::uint32_t tasks() const { return tasks_.end - tasks_.begin; }

  void run_task(std::uint32_t task, std::size_t worker) noexcept override {
    const ChunkRange range = plan_.table().tasks[tasks_.begin + task];
    for (std::uint32_t chunk = range.begin; chunk < range.end; ++chunk) {
      if (cancel_.load(std::memory_order_relaxed)) {
        return;
      }
      reduce(chunk, plan_.pointers[worker]);
    }
  }

 private:
  // 1. The counted group first in order: earlier groups contributed nothing, so nothing of them is touched.
  // 2. The other groups; while both results are in the cache they are compared.
  // Invariant: ranks of a group hold equal bits when it is done, so comparing one member speaks for all.
  void reduce(std::uint32_t index, LoadedPlan::Pointers& pointers) {
    const Chunk& chunk = plan_.table().chunks[index];
    const TensorState& tensor = plan_.tensors[chunk.tensor];
    plan_.chunk_stats[index] = {};
    if (tensor.absent) {
      return;
    }
    for (std::size_t group = tensor.counted_group; group < bucket_.groups.size(); ++group) {
      const bool counted = group == tensor.counted_group;
      gather(chunk, bucket_.groups[group], pointers);
      if (pointers.sources.empty()) {
        continue;
      }
      const bool unchanged = pointers.destinations.size() == 1 && bucket_.divisor == 1;
      if (counted || !unchanged) {
        const ChunkStats stats = reduce_group(chunk, unchanged, pointers);
        if (counted) {
          plan_.chunk_stats[index] = stats;
        }
      }
      if (!counted && compare_) {
        compare_with_counted(chunk, bucket_.groups[tensor.counted_group], bucket_.groups[group]);
      }
    }
  }

  void gather(const Chunk& chunk, const std::vector<std::int64_t>& group, LoadedPlan::Pointers& pointers) const {
    pointers.sources.clear();
    pointers.destinations.clear();
    pointers.source_ranks.clear();
    for (const std::int64_t rank : group) {
      std::byte* address = plan_.address(chunk, rank);
      pointers.destinations.push_back(address);
      if (plan_.unused[plan_.slot(chunk.tensor, rank)] == 0) {
        pointers.nonfinite[pointers.sources.size()] = 0;
        pointers.sources.push_back(address);
        pointers.source_ranks.push_back(rank);
      }
    }
  }

  ChunkStats reduce_group(const Chunk& chunk, bool unchanged, LoadedPlan::Pointers& pointers) {
    const double p = plan_.layout().norm_type;
    ReduceChunk work;
    work.dtype = bucket_.dtype;
    work.count = chunk.count;
    work.sources = pointers.sources;
    if (!unchanged) {
      work.destinations = pointers.destinations;
    }
    work.divisor = bucket_.divisor;
    work.power = power_kind(p);
    work.source_nonfinite = pointers.nonfinite.data();
    ChunkStats stats = reduce_chunk(work);
    if (work.power == PowerKind::None && !std::isinf(p)) {
      stats.power_sum = power_sum(bucket_.dtype, pointers.destinations[0], chunk.count, p, 1);
    }
    for (std::size_t source = 0; source < pointers.sources.size(); ++source) {
      if (pointers.nonfinite[source] != 0) {
        plan_.nonfinite[plan_.slot(chunk.tensor, pointers.source_ranks[source])].fetch_add(
            pointers.nonfinite[source], std::memory_order_relaxed
        );
        plan_.flagged[chunk.tensor].store(1, std::memory_order_relaxed);
      }
    }
    return stats;
  }

  void compare_with_counted(
      const Chunk& chunk, const std::vector<std::int64_t>& counted, const std::vector<std::int64_t>& group
  ) {
    const std::size_t bytes = chunk.count * plan::size_of(bucket_.dtype);
    if (std::memcmp(plan_.address(chunk, counted[0]), plan_.address(chunk, group[0]), bytes) != 0) {
      for (const std::int64_t rank : group) {
        plan_.differs[plan_.slot(chunk.tensor, rank)].store(1, std::memory_order_relaxed);
      }
      plan_.flagged[chunk.tensor].store(1, std::memory_order_relaxed);
    }
  }

  LoadedPlan& plan_;
  const LaneBucket& bucket_;
  ChunkRange tasks_;
  bool compare_;
  const std::atomic<bool>& cancel_;
};

void check_command(const LoadedPlan& plan, const ReduceBucket& command) {
  const LanePlan& layout = plan.layout();
  if (command.bucket >= layout.buckets.size()) {
    throw DeviceError(fmt::format("bucket {} is not one of the plan's {}", command.bucket, layout.buckets.size()));
  }
  if (plan.buckets[command.bucket].reduced == command.tag) {
    throw DeviceError(fmt::format("bucket {} was already reduced in attempt {}", command.bucket, command.tag));
  }
  for (const UnusedTensor& unused : command.unused) {
    const bool known = unused.tensor < layout.tensors.size() && unused.rank >= 0 &&
                       static_cast<std::size_t>(unused.rank) < plan.world();
    if (!known || layout.tensors[unused.tensor].bucket != command.bucket) {
      throw DeviceError(
          fmt::format("unused tensor {} of rank {} is not in bucket {}", unused.tensor, unused.rank, command.bucket)
      );
    }
  }
}

/// Which group is counted, and which tensors are absent.
void find_contributors(LoadedPlan& plan, const LaneBucket& bucket, std::uint32_t index, bool compare) {
  TensorState& tensor = plan.tensors[index];
  while (tensor.counted_group < bucket.groups.size() && !plan.contributed(index, bucket.groups[tensor.counted_group])) {
    ++tensor.counted_group;
  }
  tensor.absent = tensor.counted_group == bucket.groups.size();
  if (!compare || tensor.absent) {
    return;
  }
  // A group without a gradient beside one with: its replicas will not take the same optimizer step.
  for (const auto& group : bucket.groups) {
    if (!plan.contributed(index, group)) {
      for (const std::int64_t rank : group) {
        plan.differs[plan.slot(index, rank)].store(1, std::memory_order_relaxed);
      }
      plan.flagged[index].store(1, std::memory_order_relaxed);
    }
  }
}

/// Forgets the attempt before and notes who contributes to what in this one.
void begin_attempt(LoadedPlan& plan, const ReduceBucket& command) {
  BucketState& state = plan.buckets[command.bucket];
  const LaneBucket& bucket = plan.layout().buckets[command.bucket];
  state.reduced.reset();
  for (const std::uint32_t slot : state.unused_slots) {
    plan.unused[slot] = 0;
  }
  state.unused_slots.clear();
  for (const UnusedTensor& unused : command.unused) {
    const std::size_t slot = plan.slot(unused.tensor, unused.rank);
    if (plan.unused[slot] == 0) {
      plan.unused[slot] = 1;
      state.unused_slots.push_back(static_cast<std::uint32_t>(slot));
    }
  }
  for (const std::uint32_t tensor : bucket.tensors) {
    plan.tensors[tensor] = {};
    if (plan.flagged[tensor].exchange(0, std::memory_order_relaxed) != 0) {
      for (std::int64_t rank = 0; rank < plan.layout().world_size; ++rank) {
        plan.nonfinite[plan.slot(tensor, rank)].store(0, std::memory_order_relaxed);
        plan.differs[plan.slot(tensor, rank)].store(0, std::memory_order_relaxed);
      }
    }
    if (!command.unused.empty()) {
      find_contributors(plan, bucket, tensor, command.compare);
    }
  }
}

void throw_if_cancelled(const std::atomic<bool>& cancel) {
  if (cancel.load(std::memory_order_relaxed)) {
    throw DeviceError("aborted", DeviceError::Kind::Aborted);
  }
}

}  // namespace

void reduce_bucket(LoadedPlan& plan, const ReduceBucket& command, WorkerPool& pool, const std::atomic<bool>& cancel) {
  check_command(plan, command);
  begin_attempt(plan, command);
  Reduction reduction(plan, command, cancel);
  pool.run(reduction.tasks(), reduction);
  throw_if_cancelled(cancel);
  const LaneBucket& bucket = plan.layout().buckets[command.bucket];
  combine_chunks(plan, bucket);
  rescale_where_needed(plan, bucket, pool, cancel);
  throw_if_cancelled(cancel);
  plan.buckets[command.bucket].reduced = command.tag;
}

}  // namespace gradsync::device
