#pragma once
// The reducing pass on the CPU: every sum, its statistics and the comparison of sums in one pass over memory.

#include "device/host/worker_pool.hpp"
#include "device/lane.hpp"
#include "device/loaded/loaded_plan.hpp"

#include <atomic>

namespace gradsync::device {

/// Incomplete when `cancel` is raised.
void reduce_on_host(LoadedPlan& plan, const ReduceBucket& command, WorkerPool& pool, const std::atomic<bool>& cancel);

}  // namespace gradsync::device
