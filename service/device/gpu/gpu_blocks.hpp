#pragma once
// The passes between gradients and the staging memory of a plan's blocks, in the memory of a GPU: the partial sums of
// this node's ranks in the format of sums, and behind a collective its result, divided, rounded once and written to the
// ranks that are here, with the statistics.
//
// Each pass over a block is a bucket of a table of its own (kernels/tables/reduce_table.hpp), whose places follow each
// other, so that a pass copies few addresses.

#include "device/gpu/gpu_table.hpp"
#include "device/transfer/node_passes.hpp"

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace gradsync::device {

/// Made once for a plan over nodes.
class GpuBlocks {
 public:
  /// Throws DeviceError where the device has no memory for the tables.
  GpuBlocks(const KernelLibrary& library, const LoadedPlan& plan);

  /// Executes a Sum or a Join, and takes what it found.
  void run(
      LoadedPlan& plan, BlockTask::Kind kind, std::uint32_t bucket, const NodeBlock& block, const StagedBlock& staged
  );

  /// As StepPasses::sum_again, of the chunks that blocks count.
  void sum_again(LoadedPlan& plan) { table_.sum_again(plan); }

 private:
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  using Pieces = std::span<const plan::TransferPiece>;

  [[nodiscard]] GpuTableLists make_lists(const LoadedPlan& plan);
  std::uint32_t add_sum(const LoadedPlan& plan, std::uint32_t bucket, const NodeBlock& block, GpuTableLists& lists);
  std::uint32_t add_join(const LoadedPlan& plan, std::uint32_t bucket, const NodeBlock& block, GpuTableLists& lists);
  void place_sum(const LoadedPlan& plan, const Pieces& pieces, const std::byte* staged, std::uint32_t place);
  void place_join(const LoadedPlan& plan, const Pieces& pieces, const std::byte* staged, std::uint32_t place);

  std::vector<std::vector<std::uint32_t>> sums_;   ///< by bucket and NodeBucket::blocks: bucket of the table, or kNone
  std::vector<std::vector<std::uint32_t>> joins_;  ///< likewise
  std::vector<std::uint32_t> first_place_;         ///< by bucket of the table
  GpuTable table_;
};

}  // namespace gradsync::device
