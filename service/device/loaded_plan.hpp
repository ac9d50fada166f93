#pragma once
// A plan on the lane: its layout checked against the mapped memory, its chunk table, and all scratch of its steps,
// allocated once so that a steady step allocates nothing. Belongs to the lane thread; during a job workers write only
// what belongs to their chunk, and the atomics.

#include "device/chunk_math.hpp"
#include "device/chunk_table.hpp"
#include "device/lane.hpp"
#include "device/norm_sum.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace gradsync::device {

struct BufferView {
  std::byte* data = nullptr;
  std::uint64_t size_bytes = 0;
};

/// One buffer per rank, none of them twice, and a norm there is. Throws DeviceError.
void check_buffers(std::int64_t world_size, double norm_type, const std::vector<BufferView>& buffers);

/// What the last reduction of a tensor's bucket found.
struct TensorState {
  TensorSum sum;
  bool absent = false;              ///< unused on every rank
  std::uint32_t counted_group = 0;  ///< whose result the statistics are of: the first that any rank contributed to
};

struct BucketState {
  std::optional<Tag> reduced;               ///< the attempt whose sums the memory holds; empty after a failure
  std::vector<std::uint32_t> unused_slots;  ///< raised entries of LoadedPlan::unused
};

class LoadedPlan {
 public:
  /// `buffers[rank]`: the rank's arena. Throws DeviceError naming what does not fit.
  LoadedPlan(LanePlan layout, std::vector<BufferView> buffers, std::size_t threads);

  [[nodiscard]] const LanePlan& layout() const { return layout_; }

  [[nodiscard]] const ChunkTable& table() const { return table_; }

  [[nodiscard]] std::size_t world() const { return buffers_.size(); }

  [[nodiscard]] std::byte* address(const Chunk& chunk, std::int64_t rank) const;

  [[nodiscard]] const LaneBucket& bucket_of(std::uint32_t tensor) const {
    return layout_.buckets[layout_.tensors[tensor].bucket];
  }

  [[nodiscard]] std::size_t slot(std::uint32_t tensor, std::int64_t rank) const {
    return tensor * world() + static_cast<std::size_t>(rank);
  }

  /// Whether any rank of the group contributed to the tensor in this attempt.
  [[nodiscard]] bool contributed(std::uint32_t tensor, const std::vector<std::int64_t>& group) const;

  /// Pointers of one chunk for one group; one per worker.
  struct Pointers {
    std::vector<const void*> sources;
    std::vector<void*> destinations;
    std::vector<std::int64_t> source_ranks;
    std::vector<std::uint64_t> nonfinite;
  };

  std::vector<TensorState> tensors;
  std::vector<BucketState> buckets;
  std::vector<ChunkStats> chunk_stats;                ///< by chunk
  std::vector<std::uint8_t> unused;                   ///< by slot
  std::vector<std::atomic<std::uint64_t>> nonfinite;  ///< inputs, by slot
  std::vector<std::atomic<std::uint8_t>> differs;     ///< by slot
  std::vector<std::atomic<std::uint8_t>> flagged;     ///< by tensor: some slot of `nonfinite` or `differs` is raised
  std::vector<std::uint32_t> rescaled_chunks;         ///< scratch; reserved for all
  std::vector<Pointers> pointers;                     ///< by worker
  std::optional<Tag> measured;                        ///< finished with apply == false
  std::optional<Tag> applied;                         ///< its gradients were multiplied, or need not be
  std::optional<BufferId> lost_buffer;                ///< unmapped under the plan: no command can run any more

 private:
  LanePlan layout_;
  std::vector<BufferView> buffers_;
  ChunkTable table_;
};

}  // namespace gradsync::device
