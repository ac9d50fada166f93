#pragma once
// A plan on the lane: its layout checked against the mapped memory, and its chunk table, which stay as they are; with
// what its steps write. Belongs to the lane thread.

#include "device/lane.hpp"
#include "device/loaded/attempt_state.hpp"
#include "device/loaded/layout_check.hpp"
#include "device/math/chunk_table.hpp"
#include "device/transfer/node_plan.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace gradsync::device {

class LoadedPlan {
 public:
  /// `buffers[rank]`: the rank's arena. Throws DeviceError naming what does not fit.
  LoadedPlan(LanePlan layout, const std::vector<BufferView>& buffers, std::size_t threads);

  [[nodiscard]] const LanePlan& layout() const { return layout_; }

  [[nodiscard]] const ChunkTable& table() const { return table_; }

  [[nodiscard]] std::size_t world() const { return ranks_.size(); }

  /// The power of values that chunks sum on their way.
  [[nodiscard]] PowerKind power() const {
    return layout_.norm_type == 2 ? PowerKind::Two : layout_.norm_type == 1 ? PowerKind::One : PowerKind::None;
  }

  [[nodiscard]] bool is_here(std::int64_t rank) const { return ranks_[static_cast<std::size_t>(rank)].data != nullptr; }

  [[nodiscard]] const LanePart& part_of(const Chunk& chunk) const { return layout_.parts[chunk.part]; }

  [[nodiscard]] const LaneBucket& bucket_of(std::uint32_t tensor) const {
    return layout_.buckets[layout_.tensors[tensor].bucket];
  }

  [[nodiscard]] const std::vector<LaneSum>& sums_of(const LanePart& part) const { return layout_.sums[part.sums]; }

  /// Returns the tensor that a member brings into the sums of `tensor`: itself or one of its tied copies.
  [[nodiscard]] std::uint32_t memory_of(std::uint32_t tensor, const LaneMember& member) const {
    return member.copy == 0 ? tensor : layout_.tensors[tensor].copies[member.copy - 1];
  }

  /// Returns the begin of a member's input of a chunk; `width`: bytes of an element.
  [[nodiscard]] std::byte* input(const Chunk& chunk, const LaneMember& member, std::size_t width) const {
    const RankMemory& rank = ranks_[member.rank];
    return rank.data + rank.input[memory_of(part_of(chunk).tensor, member)] + chunk.source * width;
  }

  [[nodiscard]] std::byte* output(const Chunk& chunk, const LaneMember& member, std::size_t width) const {
    const RankMemory& rank = ranks_[member.rank];
    return rank.data + rank.output[memory_of(part_of(chunk).tensor, member)] + chunk.first * width;
  }

  /// Begin of a tensor's input in the arena of a rank, of its own tensors and not of those it is summed with; null
  /// where the rank does not hold it.
  [[nodiscard]] std::byte* input_of(std::uint32_t tensor, std::uint32_t rank) const {
    const std::uint64_t at = ranks_[rank].input[tensor];
    return at == kNotHeld ? nullptr : ranks_[rank].data + at;
  }

  [[nodiscard]] std::byte* output_of(std::uint32_t tensor, std::uint32_t rank) const {
    const std::uint64_t at = ranks_[rank].output[tensor];
    return at == kNotHeld ? nullptr : ranks_[rank].data + at;
  }

  [[nodiscard]] std::size_t slot(std::uint32_t tensor, std::uint32_t rank) const { return tensor * world() + rank; }

  /// The slot of the tensor that a member brings into the sums of `tensor`.
  [[nodiscard]] std::size_t slot(std::uint32_t tensor, const LaneMember& member) const {
    return slot(memory_of(tensor, member), member.rank);
  }

  /// Whether any source of the sum contributed to the tensor in this attempt.
  [[nodiscard]] bool contributed(std::uint32_t tensor, const LaneSum& sum) const;

  /// Says that some slot of `nonfinite` or `differs` of the tensor is raised; any worker.
  void flag(std::uint32_t tensor) {
    attempt_.flagged[tensor].store(1, std::memory_order_relaxed);
    attempt_.buckets[layout_.tensors[tensor].bucket].flagged.store(true, std::memory_order_relaxed);
  }

  /// Forgets what is known of the tensor but its sum: everybody contributes, and nothing was found.
  void forget_findings(std::uint32_t tensor);

  /// Notes how many elements are in parts with a contribution.
  void count_elements(std::uint32_t tensor);

  /// The tensor that a tied copy is summed and counted with; itself, if it is none.
  [[nodiscard]] std::uint32_t counted_as(std::uint32_t tensor) const { return counted_as_[tensor]; }

  /// Whether what the last pass of a step writes may still be in some cache when trainers read it.
  [[nodiscard]] bool fits_caches() const { return fits_caches_; }

  /// The part of it that steps write.
  [[nodiscard]] AttemptState& attempt() { return attempt_; }

  [[nodiscard]] const AttemptState& attempt() const { return attempt_; }

  /// What of it travels; null where all ranks are here.
  [[nodiscard]] NodePlan* nodes() { return nodes_.get(); }

  [[nodiscard]] const NodePlan* nodes() const { return nodes_.get(); }

  /// Unmapped under the plan: no command can run any more.
  [[nodiscard]] std::optional<BufferId> lost_buffer() const { return lost_buffer_; }

  void lose(BufferId buffer) { lost_buffer_ = buffer; }

 private:
  /// A rank's arena and where tensors begin in it, in bytes; of `layout_`.
  struct RankMemory {
    std::byte* data = nullptr;
    const std::uint64_t* input = nullptr;
    const std::uint64_t* output = nullptr;
  };

  void reserve_attempt();
  void reserve_pointers(std::size_t threads);
  [[nodiscard]] std::uint64_t written_bytes() const;

  LanePlan layout_;
  std::unique_ptr<NodePlan> nodes_;
  std::vector<RankMemory> ranks_;
  std::vector<std::uint32_t> counted_as_;
  ChunkTable table_;
  bool fits_caches_ = false;
  AttemptState attempt_;
  std::optional<BufferId> lost_buffer_;
};

}  // namespace gradsync::device
