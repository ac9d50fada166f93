#pragma once
// A plan on the lane: its layout checked against the mapped memory, its chunk table, and all scratch of its steps,
// allocated once so that a steady step allocates nothing. Belongs to the lane thread; during a job workers write only
// what belongs to their chunk, and the atomics.

#include "device/chunk_math.hpp"
#include "device/chunk_table.hpp"
#include "device/lane.hpp"
#include "device/layout_check.hpp"
#include "device/norm_sum.hpp"
#include "device/norm_totals.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace gradsync::device {

/// What the last reduction of a tensor's bucket found. Of a tied copy only `absent` is used. All but the sum is as it
/// was when the plan was loaded, everybody contributes, unless the bucket is `marked`.
struct TensorState {
  TensorSum sum;
  std::uint64_t counted_elements = 0;  ///< those of parts with a contribution
  bool absent = false;                 ///< no source of any of its sums contributed
  bool incomplete = false;             ///< a source of some of its sums may not have contributed
};

struct PartState {
  std::uint32_t counted_sum = 0;  ///< the statistics' one: the first with a contribution; past the last: there is none
};

struct BucketState {
  std::optional<Tag> reduced;               ///< the attempt whose sums the memory holds; empty after a failure
  std::vector<std::uint32_t> unused_slots;  ///< raised entries of LoadedPlan::unused
  bool deferred = false;                    ///< of each sum only the first destination is written yet
  bool marked = false;                      ///< somebody did not contribute to some tensor
  std::atomic<bool> flagged{false};         ///< some tensor is

  /// Whether its tensors have to be looked at one by one. A step whose buckets have none spares a thousand of them.
  [[nodiscard]] bool has_findings() const { return marked || flagged.load(std::memory_order_relaxed); }
};

class LoadedPlan {
 public:
  /// `buffers[rank]`: the rank's arena. Throws DeviceError naming what does not fit.
  LoadedPlan(LanePlan layout, const std::vector<BufferView>& buffers, std::size_t threads);

  [[nodiscard]] const LanePlan& layout() const { return layout_; }

  [[nodiscard]] const ChunkTable& table() const { return table_; }

  [[nodiscard]] std::size_t world() const { return ranks_.size(); }

  [[nodiscard]] const LanePart& part_of(const Chunk& chunk) const { return layout_.parts[chunk.part]; }

  [[nodiscard]] const LaneBucket& bucket_of(std::uint32_t tensor) const {
    return layout_.buckets[layout_.tensors[tensor].bucket];
  }

  [[nodiscard]] const std::vector<LaneSum>& sums_of(const LanePart& part) const { return layout_.sums[part.sums]; }

  /// The tensor whose memory a member brings into the sums of `tensor`: itself or one of its tied copies.
  [[nodiscard]] std::uint32_t memory_of(std::uint32_t tensor, const LaneMember& member) const {
    return member.copy == 0 ? tensor : layout_.tensors[tensor].copies[member.copy - 1];
  }

  /// Where a member's input of a chunk begins; `width`: bytes of an element.
  [[nodiscard]] std::byte* input(const Chunk& chunk, const LaneMember& member, std::size_t width) const {
    const RankMemory& rank = ranks_[member.rank];
    return rank.data + rank.input[memory_of(part_of(chunk).tensor, member)] + chunk.source * width;
  }

  [[nodiscard]] std::byte* output(const Chunk& chunk, const LaneMember& member, std::size_t width) const {
    const RankMemory& rank = ranks_[member.rank];
    return rank.data + rank.output[memory_of(part_of(chunk).tensor, member)] + chunk.first * width;
  }

  [[nodiscard]] std::size_t slot(std::uint32_t tensor, std::uint32_t rank) const { return tensor * world() + rank; }

  /// Of the memory that a member brings into the sums of `tensor`.
  [[nodiscard]] std::size_t slot(std::uint32_t tensor, const LaneMember& member) const {
    return slot(memory_of(tensor, member), member.rank);
  }

  /// Whether any source of the sum contributed to the tensor in this attempt.
  [[nodiscard]] bool contributed(std::uint32_t tensor, const LaneSum& sum) const;

  /// Says that some slot of `nonfinite` or `differs` of the tensor is raised; any worker.
  void flag(std::uint32_t tensor) {
    flagged[tensor].store(1, std::memory_order_relaxed);
    buckets[layout_.tensors[tensor].bucket].flagged.store(true, std::memory_order_relaxed);
  }

  /// Forgets what is known of the tensor but its sum: everybody contributes, and nothing was found.
  void forget_findings(std::uint32_t tensor);

  /// Notes how many elements are in parts with a contribution.
  void count_elements(std::uint32_t tensor);

  /// The tensor that a tied copy is summed and counted with; itself, if it is none.
  [[nodiscard]] std::uint32_t counted_as(std::uint32_t tensor) const { return counted_as_[tensor]; }

  /// Whether a step takes no more than about a millisecond of one thread in all its commands together.
  [[nodiscard]] bool is_small() const { return small_; }

  /// Whether what the last pass of a step writes may still be in some cache when trainers read it.
  [[nodiscard]] bool fits_caches() const { return fits_caches_; }

  /// Pointers of one chunk for one sum; one per worker.
  struct Pointers {
    std::vector<const void*> sources;
    std::vector<void*> destinations;
    std::vector<std::size_t> source_slots;
    std::vector<std::uint64_t> nonfinite;
  };

  std::vector<TensorState> tensors;
  std::vector<PartState> parts;
  std::vector<BucketState> buckets;
  std::vector<ChunkStats> chunk_stats;                ///< by chunk
  std::vector<std::uint8_t> unused;                   ///< by slot
  std::vector<std::atomic<std::uint64_t>> nonfinite;  ///< inputs, by slot
  std::vector<std::atomic<std::uint8_t>> differs;     ///< by slot
  std::vector<std::atomic<std::uint8_t>> flagged;     ///< by tensor; by `flag`
  std::vector<std::uint32_t> rescaled_chunks;         ///< scratch; reserved for all
  std::vector<Pointers> pointers;                     ///< by worker
  NormTotals totals;                                  ///< scratch
  std::optional<Tag> measured;                        ///< finished with apply == false
  std::optional<Tag> applied;                         ///< its gradients were multiplied, or need not be
  std::optional<BufferId> lost_buffer;                ///< unmapped under the plan: no command can run any more

 private:
  /// A rank's arena and where tensors begin in it, in bytes; of `layout_`.
  struct RankMemory {
    std::byte* data = nullptr;
    const std::uint64_t* input = nullptr;
    const std::uint64_t* output = nullptr;
  };

  void reserve_pointers(std::size_t threads);
  [[nodiscard]] bool takes_a_moment() const;
  [[nodiscard]] std::uint64_t written_bytes() const;

  LanePlan layout_;
  std::vector<RankMemory> ranks_;
  std::vector<std::uint32_t> counted_as_;
  ChunkTable table_;
  bool small_ = false;
  bool fits_caches_ = false;
};

}  // namespace gradsync::device
