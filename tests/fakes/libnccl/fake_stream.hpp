#pragma once

// What the fake NCCL gets where NCCL gets a cudaStream_t: from a lane of CPUs, or from the emulation of a GPU.

#include "device/nccl/host_stream_queue.hpp"

namespace gradsync::fakes {

using FakeStream = device::HostStreamQueue;

}  // namespace gradsync::fakes
