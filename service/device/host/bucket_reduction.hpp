#pragma once
// ReduceBucket on the CPU: every group's sum, its statistics and the comparison of groups in one pass over memory.

#include "device/host/worker_pool.hpp"
#include "device/lane.hpp"
#include "device/loaded/loaded_plan.hpp"

#include <atomic>

namespace gradsync::device {

/// Throws DeviceError: Aborted when `cancel` was raised in time, Failed for a command that does not fit the plan.
void reduce_bucket(LoadedPlan& plan, const ReduceBucket& command, WorkerPool& pool, const std::atomic<bool>& cancel);

}  // namespace gradsync::device
