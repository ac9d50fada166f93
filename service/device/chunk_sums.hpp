#pragma once
// The chunks' statistics → those of each tensor, and the second reading of tensors whose powers left the doubles.

#include "device/loaded_plan.hpp"
#include "device/worker_pool.hpp"

#include <atomic>

namespace gradsync::device {

/// In the order of the chunks, which is that of parts and of their outputs. Incomplete when `cancel` is raised.
void combine_chunks(LoadedPlan& plan, const LaneBucket& bucket, WorkerPool& pool, const std::atomic<bool>& cancel);

}  // namespace gradsync::device
