#pragma once
// Device memory with an owner, and the one way in which tests and benchmarks notice an error of the runtime.

#include <cstddef>
#include <cuda_runtime.h>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace gradsync::kernels {

inline void must(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
  }
}

class DeviceMemory {
 public:
  explicit DeviceMemory(std::size_t bytes) : bytes_(bytes) { must(cudaMalloc(&address_, bytes), "cudaMalloc"); }

  DeviceMemory(DeviceMemory&& other) noexcept
      : address_(std::exchange(other.address_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

  DeviceMemory& operator=(DeviceMemory&&) = delete;

  ~DeviceMemory() { (void)cudaFree(address_); }

  [[nodiscard]] std::byte* get() const { return static_cast<std::byte*>(address_); }

  [[nodiscard]] std::size_t bytes() const { return bytes_; }

  void upload(const void* from, std::size_t bytes, std::size_t offset = 0) const {
    if (bytes != 0) {
      must(cudaMemcpyAsync(get() + offset, from, bytes, cudaMemcpyHostToDevice, nullptr), "copy to the device");
      must(cudaStreamSynchronize(nullptr), "copy to the device");
    }
  }

  void download(void* to, std::size_t bytes, std::size_t offset = 0) const {
    if (bytes != 0) {
      must(cudaMemcpyAsync(to, get() + offset, bytes, cudaMemcpyDeviceToHost, nullptr), "copy from the device");
      must(cudaStreamSynchronize(nullptr), "copy from the device");
    }
  }

  void zero() const { must(cudaMemsetAsync(address_, 0, bytes_, nullptr), "cudaMemset"); }

 private:
  void* address_ = nullptr;
  std::size_t bytes_;
};

template <typename T>
DeviceMemory uploaded(const std::vector<T>& values) {
  DeviceMemory memory(values.size() * sizeof(T));
  memory.upload(values.data(), values.size() * sizeof(T));
  return memory;
}

template <typename T>
std::vector<T> downloaded(const DeviceMemory& memory, std::size_t count) {
  std::vector<T> values(count);
  memory.download(values.data(), count * sizeof(T));
  return values;
}

}  // namespace gradsync::kernels
