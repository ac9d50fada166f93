#pragma once
// Passes over the outputs of this node, of a plan over nodes.

#include "device/host/worker_pool.hpp"
#include "device/loaded/loaded_plan.hpp"
#include "device/step/step_passes.hpp"
#include "device/transfer/node_passes.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace gradsync::device {

/// As NodePasses::compare_results. Incomplete where `cancel` is raised.
void compare_results(
    LoadedPlan& plan, std::uint32_t bucket, OutputReader& outputs, WorkerPool& pool, const std::atomic<bool>& cancel
);

/// The last half of a reduction, when all results of the bucket are here. Throws DeviceError as the passes do.
void end_node_bucket(LoadedPlan& plan, const ReduceBucket& command, NodePasses& nodes, const StepPasses& passes);

/// What becomes of the outputs of a step that is decided.
class OutputScaling {
 public:
  enum class Change : std::uint8_t { None, Zeros, Multiply };

  OutputScaling(const LoadedPlan& plan, const ScaleGradients& command);

  /// Whether anything may be changed at all.
  [[nodiscard]] bool needed() const { return needed_; }

  /// That of a sum of a part. Zeros are written and not multiplied, because NaN times 0 is NaN.
  [[nodiscard]] Change of(std::uint32_t part, std::size_t sum) const;

 private:
  const LoadedPlan& plan_;
  const ScaleGradients& command_;
  bool multiplies_ = false;
  bool needed_ = false;
};

/// As NodePasses::scale_outputs, of memory of the CPU.
[[nodiscard]] double scale_outputs(
    LoadedPlan& plan, const ScaleGradients& command, WorkerPool& pool, const std::atomic<bool>& cancel
);

}  // namespace gradsync::device
