#pragma once
// What collectives need of a GPU: memory, and streams of their own that say how far they are.

#include "device/gpu/kernel_library.hpp"
#include "device/gpu/release_on_gpu.hpp"
#include "device/nccl/collective_device.hpp"

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace gradsync::device {

class GpuStream final : public CollectiveStream {
 public:
  /// Throws DeviceError.
  explicit GpuStream(const KernelLibrary& library);

  [[nodiscard]] NcclStream* handle() override;
  void mark() override;
  [[nodiscard]] std::uint64_t passed() override;

 private:
  const KernelLibrary& library_;
  std::unique_ptr<gradsync_stream, ReleaseOnGpu> stream_;
};

class GpuCollectiveDevice final : public CollectiveDevice {
 public:
  /// `uuid`: as GpuDeviceOptions has it.
  GpuCollectiveDevice(const KernelLibrary& library, std::string uuid) : library_(library), uuid_(std::move(uuid)) {}

  [[nodiscard]] std::unique_ptr<CollectiveStream> make_stream() override;
  [[nodiscard]] std::byte* allocate(std::size_t bytes) override;
  void use_on_this_thread() override;

 private:
  const KernelLibrary& library_;
  std::string uuid_;
  std::vector<std::unique_ptr<std::byte, ReleaseOnGpu>> memory_;
};

}  // namespace gradsync::device
