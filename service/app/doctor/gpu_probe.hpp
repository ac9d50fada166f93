#pragma once
// Tries GPUs with the processes that a daemon and trainers would have: a worker for each, and one that lends memory.

#include "app/config/options.hpp"
#include "app/doctor/machine.hpp"
#include "base/clock.hpp"
#include "device/gpu/lent_memory.hpp"

#include <functional>
#include <string>
#include <vector>

namespace gradsync::app {

/// What the driver says of a GPU: its name, and whether it lets two processes use it.
[[nodiscard]] std::vector<Finding> findings_of(const std::string& gpu, const device::GpuDescription& description);

/// Describes each GPU, has a worker open it and reach memory of this machine, and has each worker map memory that
/// another process lends of each GPU: read what that wrote, and write what that reads. Calls back with one finding
/// after the other; each step takes at most `timeout`.
void probe_gpus(
    const GpuSection& options,
    const std::string& kernels,
    const std::vector<std::string>& gpus,
    Milliseconds timeout,
    const std::function<void(Finding)>& found
);

}  // namespace gradsync::app
