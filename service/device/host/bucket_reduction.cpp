#include "device/host/bucket_reduction.hpp"

#include "device/math/chunk_reference.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace gradsync::device {

namespace {

class Reduction final : public PoolJob {
 public:
  Reduction(LoadedPlan& plan, const ReduceBucket& command, const std::atomic<bool>& cancel)
      : plan_(plan),
        bucket_(plan.layout().buckets[command.bucket]),
        width_(plan::size_of(bucket_.dtype)),
        tasks_(plan.table().of_bucket[command.bucket]),
        nodes_(plan.nodes()),
        compare_(command.compare && nodes_ == nullptr),
        deferred_(plan.attempt().buckets[command.bucket].deferred),
        marked_(plan.attempt().buckets[command.bucket].marked),
        cancel_(cancel) {}

  [[nodiscard]] std::uint32_t tasks() const { return tasks_.end - tasks_.begin; }

  void run_task(std::uint32_t task, std::size_t worker) noexcept override {
    const ChunkRange range = plan_.table().tasks[tasks_.begin + task];
    for (std::uint32_t at = range.begin; at < range.end; ++at) {
      if (cancel_.load(std::memory_order_relaxed)) {
        return;
      }
      reduce(plan_.table().work[at], plan_.attempt().pointers[worker]);
    }
  }

 private:
  // In order, so that the counted sum is there when later ones are compared with it, while both are in the cache.
  // Invariant: destinations of a sum hold equal bits when it is done, or are about to: the first speaks for all.
  void reduce(std::uint32_t index, ChunkPointers& pointers) {
    const Chunk& chunk = plan_.table().chunks[index];
    const LanePart& part = plan_.part_of(chunk);
    plan_.attempt().chunk_stats[index] = {};
    if (marked_ && plan_.attempt().tensors[part.tensor].absent) {
      return;
    }
    const std::vector<LaneSum>& sums = plan_.sums_of(part);
    const std::uint32_t counted_sum = plan_.attempt().parts[chunk.part].counted_sum;
    for (std::uint32_t sum = 0; sum < sums.size(); ++sum) {
      if (nodes_ != nullptr && !nodes_->is_here(part, sum)) {
        continue;
      }
      const bool counted = sum == counted_sum;
      gather(chunk, part, sums[sum], pointers);
      if (pointers.sources.empty()) {
        write_zeros(chunk, pointers);
        continue;
      }
      const bool unchanged = bucket_.divisor == 1 && pointers.sources.size() == 1 &&
                             sums[sum].destinations.size() == 1 && pointers.sources[0] == pointers.destinations[0];
      if (counted || !unchanged) {
        const ChunkStats stats = reduce_sum(chunk, part, unchanged, pointers);
        if (counted) {
          plan_.attempt().chunk_stats[index] = stats;
        } else if (stats.nonfinite != 0) {
          nodes_ == nullptr || nodes_->all_here[part.sums] ? add_nonfinite(stats, plan_.attempt().chunk_stats[index])
                                                           : nodes_->note_replica(part.tensor, stats);
        }
      }
      if (!counted && compare_) {
        compare_with_counted(chunk, part, sums[counted_sum], sums[sum]);
      }
    }
  }

  void gather(const Chunk& chunk, const LanePart& part, const LaneSum& sum, ChunkPointers& pointers) const {
    pointers.sources.clear();
    pointers.destinations.clear();
    pointers.source_slots.clear();
    for (const LaneMember& source : sum.sources) {
      const std::size_t slot = plan_.slot(part.tensor, source);
      if (plan_.attempt().unused[slot] == 0) {
        pointers.nonfinite[pointers.sources.size()] = 0;
        pointers.sources.push_back(plan_.input(chunk, source, width_));
        pointers.source_slots.push_back(slot);
      }
    }
    for (const LaneMember& destination : sum.destinations) {
      pointers.destinations.push_back(plan_.output(chunk, destination, width_));
      if (deferred_) {
        return;
      }
    }
  }

  void write_zeros(const Chunk& chunk, const ChunkPointers& pointers) const {
    for (void* destination : pointers.destinations) {
      std::memset(destination, 0, chunk.count() * width_);
    }
  }

  ChunkStats reduce_sum(const Chunk& chunk, const LanePart& part, bool unchanged, ChunkPointers& pointers) {
    const double p = plan_.layout().norm_type;
    ReduceChunk work;
    work.dtype = bucket_.dtype;
    work.count = chunk.run;
    work.runs = chunk.runs;
    work.source_distance = chunk.runs == 1 ? 0 : part.strides[0].distance;
    work.sources = pointers.sources;
    if (!unchanged) {
      work.destinations = pointers.destinations;
    }
    work.divisor = bucket_.divisor;
    work.power = plan_.power();
    work.source_nonfinite = pointers.nonfinite.data();
    ChunkStats stats = reduce_chunk(work);
    if (work.power == PowerKind::None && !std::isinf(p)) {
      stats.power_sum = power_sum(bucket_.dtype, pointers.destinations[0], chunk.count(), p, 1);
    }
    for (std::size_t source = 0; source < pointers.sources.size(); ++source) {
      if (pointers.nonfinite[source] != 0) {
        const std::size_t slot = pointers.source_slots[source];
        plan_.attempt().nonfinite[slot].fetch_add(pointers.nonfinite[source], std::memory_order_relaxed);
        plan_.flag(static_cast<std::uint32_t>(slot / plan_.world()));
      }
    }
    return stats;
  }

  /// A NaN that the sum of a replica alone has is in the norm as well: its ranks are about to take it for a gradient.
  /// Values of replicas count once. A replica that one rank alone holds is not summed here; steps that compare read it.
  static void add_nonfinite(const ChunkStats& replica, ChunkStats& counted) {
    counted.nonfinite = std::max(counted.nonfinite, replica.nonfinite);
    counted.nan = std::max(counted.nan, replica.nan);
  }

  void compare_with_counted(const Chunk& chunk, const LanePart& part, const LaneSum& counted, const LaneSum& sum) {
    const std::byte* ours = plan_.output(chunk, sum.destinations[0], width_);
    if (std::memcmp(plan_.output(chunk, counted.destinations[0], width_), ours, chunk.count() * width_) != 0) {
      for (const LaneMember& destination : sum.destinations) {
        plan_.attempt().differs[plan_.slot(part.tensor, destination.rank)].store(1, std::memory_order_relaxed);
      }
      plan_.flag(part.tensor);
    }
  }

  LoadedPlan& plan_;
  const LaneBucket& bucket_;
  std::size_t width_;
  ChunkRange tasks_;
  NodePlan* nodes_;  ///< null: all ranks are here
  bool compare_;     ///< over nodes that is a pass of its own, when all results are here
  bool deferred_;
  bool marked_;
  const std::atomic<bool>& cancel_;
};

}  // namespace

void reduce_on_host(LoadedPlan& plan, const ReduceBucket& command, WorkerPool& pool, const std::atomic<bool>& cancel) {
  Reduction reduction(plan, command, cancel);
  pool.run(reduction.tasks(), reduction);
}

}  // namespace gradsync::device
