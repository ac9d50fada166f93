#pragma once
// The chunks' statistics → those of each tensor, and the second reading of tensors whose powers left the doubles.

#include "device/host/worker_pool.hpp"
#include "device/loaded/loaded_plan.hpp"

#include <atomic>

namespace gradsync::device {

/// Adds in the order of the chunks, which is that of parts and of their outputs. Incomplete when `cancel` is raised.
void combine_chunks(LoadedPlan& plan, const LaneBucket& bucket, WorkerPool& pool, const std::atomic<bool>& cancel);

}  // namespace gradsync::device
