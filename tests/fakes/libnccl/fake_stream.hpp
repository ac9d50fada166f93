#pragma once

// What the fake NCCL gets where NCCL gets a cudaStream_t.

#include "device/nccl/host_stream.hpp"

namespace gradsync::fakes {

using FakeStream = device::HostStreamQueue;

}  // namespace gradsync::fakes
