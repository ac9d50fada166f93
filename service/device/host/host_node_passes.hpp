#pragma once
// The passes over the memory of a plan over nodes on the CPU: by the threads of a pool.

#include "device/host/worker_pool.hpp"
#include "device/transfer/node_passes.hpp"

#include <atomic>

namespace gradsync::device {

class HostNodePasses final : public NodePasses {
 public:
  HostNodePasses(WorkerPool& pool, const std::atomic<bool>& cancel) : pool_(pool), cancel_(cancel) {}

  [[nodiscard]] std::unique_ptr<BlockWork> make_blocks(LoadedPlan& plan, std::uint64_t staging_bytes) override;
  void compare_results(LoadedPlan& plan, std::uint32_t bucket) override;
  [[nodiscard]] double scale_outputs(LoadedPlan& plan, const ScaleGradients& command) override;
  [[nodiscard]] RowsRead read_copies(const LoadedPlan& plan, const ReadRows& command) override;

 private:
  WorkerPool& pool_;
  const std::atomic<bool>& cancel_;
};

}  // namespace gradsync::device
