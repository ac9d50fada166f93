#pragma once
// A rank of nccl_one_gpu.cpp: communicators by name, all of them non-blocking and every wait with a deadline.

#include "gpu/experiments/workers/worker.hpp"

namespace gradsync::experiments {

Handlers nccl_handlers();

}  // namespace gradsync::experiments
