#pragma once
// Passes over the outputs of this node, of a plan over nodes.

#include "device/host/worker_pool.hpp"
#include "device/loaded/loaded_plan.hpp"
#include "device/step/step_passes.hpp"

#include <atomic>
#include <cstdint>

namespace gradsync::device {

/// Compares the results of a part's sums bit for bit, of those that have a destination here, with the first of them.
/// Raises `differs` of the attempt. Takes the hashes by which results on other nodes are compared with that one.
/// Incomplete where `cancel` is raised.
void compare_results(LoadedPlan& plan, std::uint32_t bucket, WorkerPool& pool, const std::atomic<bool>& cancel);

/// The last half of a reduction, when all results of the bucket are here. Throws DeviceError as the passes do.
void end_node_bucket(
    LoadedPlan& plan,
    const ReduceBucket& command,
    WorkerPool& pool,
    const StepPasses& passes,
    const std::atomic<bool>& cancel
);

/// As StepPasses::multiply; and writes zeros to sums that nobody contributed to, of tensors that are not in `absent`.
/// Seconds it took. Throws DeviceError Aborted.
[[nodiscard]] double scale_outputs(
    LoadedPlan& plan, const ScaleGradients& command, WorkerPool& pool, const std::atomic<bool>& cancel
);

}  // namespace gradsync::device
