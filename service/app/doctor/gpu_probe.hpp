#pragma once
// Starts a worker for a GPU, as a daemon does, and has it reach memory.

#include "app/config/options.hpp"
#include "app/doctor/machine.hpp"
#include "base/clock.hpp"

#include <string>

namespace gradsync::app {

/// One finding. It takes as long as the worker needs to open the GPU, at most `timeout`.
[[nodiscard]] Finding probe_gpu(const GpuSection& options, const std::string& gpu, Milliseconds timeout);

}  // namespace gradsync::app
