#pragma once
// The memory that the steps of a loaded plan write: the findings of an attempt so far, and scratch. It is allocated
// once, so that a steady step allocates nothing. It belongs to the lane thread; during a job workers write only the
// entries of their chunk, and the atomics.

#include "device/lane.hpp"
#include "device/math/chunk_math.hpp"
#include "device/math/norm_sum.hpp"
#include "device/math/norm_totals.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace gradsync::device {

/// The findings of the last reduction of a tensor's bucket. A tied copy uses only `absent`. Unless the bucket is
/// `marked`, every rank contributes, and all fields but the sum are as they were when the plan was loaded.
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
  std::optional<Tag> reduced;               ///< the attempt that left its sums in memory; empty after a failure
  std::vector<std::uint32_t> unused_slots;  ///< raised entries of AttemptState::unused
  bool deferred = false;                    ///< only the first destination of each sum is written yet
  bool marked = false;                      ///< some rank did not contribute to some tensor
  std::atomic<bool> flagged{false};         ///< some tensor is

  /// Whether its tensors have to be looked at one by one. A step without findings skips a thousand of them.
  [[nodiscard]] bool has_findings() const { return marked || flagged.load(std::memory_order_relaxed); }
};

/// Pointers of one chunk for one sum; one per worker.
struct ChunkPointers {
  std::vector<const void*> sources;
  std::vector<void*> destinations;
  std::vector<std::size_t> source_slots;
  std::vector<std::uint64_t> nonfinite;
};

/// A slot is of a tensor on a rank: LoadedPlan::slot.
struct AttemptState {
  explicit AttemptState(NormTotals none) : totals(std::move(none)) {}

  std::vector<TensorState> tensors;
  std::vector<PartState> parts;
  std::vector<BucketState> buckets;
  std::vector<ChunkStats> chunk_stats;                ///< by chunk
  std::vector<std::uint8_t> unused;                   ///< by slot
  std::vector<std::atomic<std::uint64_t>> nonfinite;  ///< inputs, by slot
  std::vector<std::atomic<std::uint8_t>> differs;     ///< by slot
  std::vector<std::atomic<std::uint8_t>> flagged;     ///< by tensor; by LoadedPlan::flag
  std::vector<std::uint32_t> rescaled_chunks;         ///< scratch; reserved for all
  std::vector<ChunkPointers> pointers;                ///< scratch, by worker
  NormTotals totals;                                  ///< scratch
  std::optional<Tag> measured;                        ///< finished with apply == false
  std::optional<Tag> applied;                         ///< its gradients were multiplied, or need not be
};

}  // namespace gradsync::device
