#pragma once
// What a worker does to answer whether a clip may go on without its host (docs/adr/0025, "defer"): its stream waits for
// a word in host memory, which the same process writes while another of its threads is busy with CUDA.

#include "gpu/experiments/workers/device_worker.hpp"

namespace gradsync::experiments {

/// host_wait (`value`; `beside`: idle, synchronize, launch, allocate or free), host_store and host_memop (`value`),
/// beside_ended. `device` must outlive the handlers.
void add_host_flag_handlers(Handlers& handlers, DeviceWorker& device);

}  // namespace gradsync::experiments
