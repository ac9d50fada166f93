#pragma once
// The passes between gradients and the staging memory of a plan's blocks, in the memory of a GPU: the partial sums of
// this node's ranks in the format of sums, and behind a collective its result, divided, rounded once and written to the
// ranks that are here, with the statistics.
//
// Each pass over a block is a bucket of a table of its own (kernels/tables/reduce_table.hpp), whose places follow each
// other, so that a pass copies few addresses.

#include "device/gpu/release_on_gpu.hpp"
#include "device/transfer/node_passes.hpp"

#include <cstdint>
#include <limits>
#include <memory>
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
  void sum_again(LoadedPlan& plan);

 private:
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

  struct Pass {
    std::uint32_t bucket = 0;  ///< of the plan
    std::uint32_t first_place = 0;
    std::uint32_t first_chunk = 0;
    std::vector<std::uint32_t> chunks = {};  ///< of a Join: index into NodeBucket::outputs, by chunk of the table
  };

  class Lists;

  void make_passes(const LoadedPlan& plan, Lists& lists);
  std::uint32_t add_sum(const LoadedPlan& plan, std::uint32_t bucket, const NodeBlock& block, Lists& lists);
  std::uint32_t add_join(const LoadedPlan& plan, std::uint32_t bucket, const NodeBlock& block, Lists& lists);
  void place_sum(const LoadedPlan& plan, const Pass& pass, const NodeBlock& block, const StagedBlock& staged);
  void place_join(const LoadedPlan& plan, const Pass& pass, const NodeBlock& block, const StagedBlock& staged);
  void note_inputs(LoadedPlan& plan);
  void take_results(LoadedPlan& plan, const Pass& pass, const NodeBlock& block);

  const KernelLibrary& library_;
  std::vector<Pass> passes_;                       ///< by bucket of the table
  std::vector<std::vector<std::uint32_t>> sums_;   ///< by bucket and NodeBucket::blocks: their pass, or kNone
  std::vector<std::vector<std::uint32_t>> joins_;  ///< likewise
  std::vector<std::size_t> slots_;                 ///< by place: that of an input of a rank; else none
  std::unique_ptr<gradsync_reduction, ReleaseOnGpu> reduction_;
  std::vector<std::uint64_t> addresses_;         ///< by place, of the last time that its pass ran
  std::vector<gradsync_reduced_chunk> results_;  ///< by chunk; scratch, as the next three
  std::vector<std::uint64_t> nonfinite_;
  std::vector<std::uint32_t> differs_;
  std::vector<double> scales_;
};

}  // namespace gradsync::device
