#pragma once
// The passes over the chunks of blocks, by the threads of a pool: the partial sums of this node's ranks into staging
// memory, the sums of all nodes out of it, and results that another node made.

#include "device/host/worker_pool.hpp"
#include "device/loaded/loaded_plan.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace gradsync::device {

/// A block in staging memory: what each message holds, as node_transfer.hpp says.
struct StagedBlock {
  std::byte* own = nullptr;                ///< the partial sum of this node; null: it has no source
  std::vector<const std::byte*> partials;  ///< at the owner, by source node; its own among them
  std::byte* result = nullptr;             ///< null: no message has the result
};

/// What is done with some chunks of a block.
struct BlockTask {
  enum class Kind : std::uint8_t { Sum, Join, Copy };

  Kind kind = Kind::Sum;
  std::uint32_t bucket = 0;
  const NodeBlock* block = nullptr;
  const StagedBlock* staged = nullptr;
  ChunkRange chunks;  ///< of NodeBucket::inputs for a Sum, else of NodeBucket::outputs
};

class BlockPass final : public PoolJob {
 public:
  BlockPass(LoadedPlan& plan, std::size_t threads, const std::atomic<bool>& cancel);

  /// Appends tasks for a whole block.
  void add(BlockTask::Kind kind, std::uint32_t bucket, const NodeBlock& block, const StagedBlock& staged);

  /// Executes what was added, and forgets it. Incomplete where `cancel` is raised.
  void run(WorkerPool& pool);

  void run_task(std::uint32_t task, std::size_t worker) noexcept override;

 private:
  struct Scratch {
    std::vector<MixedSource> sources;
    std::vector<const void*> alike;  ///< the same, where all have the format of the result
    std::vector<void*> destinations;
    std::vector<std::size_t> slots;
  };

  void sum(const BlockTask& task, const BlockChunk& chunk, Scratch& scratch);
  void join(const BlockTask& task, const BlockChunk& chunk, Scratch& scratch);
  void copy(const BlockTask& task, const BlockChunk& chunk, Scratch& scratch) const;
  void count_inputs(const MixedChunk& work, const Scratch& scratch);
  void gather_outputs(const BlockTask& task, const BlockChunk& chunk, std::vector<void*>& destinations) const;

  [[nodiscard]] const plan::BucketTransfer& transfer_of(const BlockTask& task) const {
    return plan_.layout().nodes.transfers[task.bucket];
  }

  [[nodiscard]] const LaneSum& sum_of(const BlockTask& task, const BlockChunk& chunk) const;

  LoadedPlan& plan_;
  const std::atomic<bool>& cancel_;
  std::vector<BlockTask> tasks_;
  std::vector<Scratch> scratch_;  ///< by worker
};

}  // namespace gradsync::device
