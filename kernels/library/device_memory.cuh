#pragma once
// Memory of the device with an owner, and what becomes of memory that is given back. Thread: that of the passes.

#include "kernels/library/gpu_calls.cuh"

#include <cstddef>

namespace gradsync::kernels {

inline namespace of_gpu_library {

/// CUDA waits for the whole device before it frees memory, or closes that of another process, and a collective whose
/// peer is gone runs until it is aborted by the thread that would wait: what is given back while streams for
/// collectives are busy is kept until they are not. The failure is that of releasing anything that was kept.
[[nodiscard]] cudaError_t give_back(void* address, cudaError_t (*release)(void* address));
cudaError_t release_kept();

class DeviceMemory {
 public:
  explicit DeviceMemory(std::size_t bytes) {
    (void)release_kept();
    must(cudaMalloc(&address_, bytes), "allocating device memory");
  }

  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  ~DeviceMemory() { (void)give_back(address_, cudaFree); }

  [[nodiscard]] std::byte* at(std::size_t offset) const { return static_cast<std::byte*>(address_) + offset; }

 private:
  void* address_ = nullptr;
};

}  // namespace of_gpu_library

}  // namespace gradsync::kernels
