#include "device/host/host_node_passes.hpp"

#include "device/transfer/node_copies.hpp"
#include "device/transfer/node_outputs.hpp"
#include "device/transfer/staging.hpp"

#include <cstring>

namespace gradsync::device {

namespace {

class HostBlockWork final : public BlockWork {
 public:
  HostBlockWork(LoadedPlan& plan, std::uint64_t staging_bytes, WorkerPool& pool, const std::atomic<bool>& cancel)
      : pool_(pool), staging_(staging_bytes), pass_(plan, static_cast<std::size_t>(pool.threads()), cancel) {}

  [[nodiscard]] std::byte* memory() const override { return staging_.begin(); }

  void write(std::byte* to, const void* from, std::size_t bytes) override { std::memcpy(to, from, bytes); }

  void read(void* to, const std::byte* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }

  void add(BlockTask::Kind kind, std::uint32_t bucket, const NodeBlock& block, const StagedBlock& staged) override {
    pass_.add(kind, bucket, block, staged);
  }

  void run() override { pass_.run(pool_); }

 private:
  WorkerPool& pool_;
  StagingMemory staging_;
  BlockPass pass_;
};

/// In place.
class HostOutputs final : public OutputReader {
 public:
  [[nodiscard]] const std::byte* read(
      const LoadedPlan& plan, const Chunk& chunk, const LaneMember& member, std::size_t width
  ) noexcept override {
    return plan.output(chunk, member, width);
  }
};

}  // namespace

std::unique_ptr<BlockWork> HostNodePasses::make_blocks(LoadedPlan& plan, std::uint64_t staging_bytes) {
  return std::make_unique<HostBlockWork>(plan, staging_bytes, pool_, cancel_);
}

void HostNodePasses::compare_results(LoadedPlan& plan, std::uint32_t bucket) {
  HostOutputs outputs;
  device::compare_results(plan, bucket, outputs, pool_, cancel_);
}

double HostNodePasses::scale_outputs(LoadedPlan& plan, const ScaleGradients& command) {
  return device::scale_outputs(plan, command, pool_, cancel_);
}

RowsRead HostNodePasses::read_copies(const LoadedPlan& plan, const ReadRows& command) {
  HostOutputs outputs;
  return device::read_copies(plan, command, outputs, pool_, cancel_);
}

}  // namespace gradsync::device
