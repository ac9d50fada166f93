#pragma once
// The chunks' statistics → those of each tensor, and the second reading of tensors whose powers left the doubles.

#include "device/loaded_plan.hpp"
#include "device/worker_pool.hpp"

#include <atomic>

namespace gradsync::device {

/// In the order of the chunks, which is that of parts and of their outputs.
void combine_chunks(LoadedPlan& plan, const LaneBucket& bucket);

/// Takes the sums of the bucket's tensors again that need it. Incomplete when `cancel` is raised.
void rescale_where_needed(
    LoadedPlan& plan, const LaneBucket& bucket, WorkerPool& pool, const std::atomic<bool>& cancel
);

}  // namespace gradsync::device
