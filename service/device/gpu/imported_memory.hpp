#pragma once
// Memory of a GPU that another process allocated: opened by its handle, checked against what its owner said of it, and
// closed with the last buffer that lies in it, at once or when no collective is under way any more.
//
// Thread: that of the lane, on which the device was opened.

#include "device/gpu/kernel_library.hpp"
#include "device/queue/lane_device.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

namespace gradsync::device {

class ImportedMemory {
 public:
  explicit ImportedMemory(const KernelLibrary& library) : library_(library) {}

  /// Throws DeviceError, with what to do about it: CUDA refused the handle, or the memory is smaller than the buffer
  /// or its owner say. Nothing stays open then. The buffers must not outlive this.
  [[nodiscard]] std::unique_ptr<LaneBuffer> map(const ExportedMemory& memory, std::uint64_t size_bytes);

  /// Opens it by itself, whatever is mapped already, reads and writes `size_bytes` of it, and closes it. Throws
  /// DeviceError that says which of these failed; it is closed before that, if it can be.
  [[nodiscard]] Probe probe(const ExportedMemory& memory, std::uint64_t size_bytes) const;

 private:
  class Allocation;
  class Buffer;

  const KernelLibrary& library_;
  std::map<std::uint64_t, std::weak_ptr<const Allocation>> open_;  ///< by ExportedMemory::allocation
};

}  // namespace gradsync::device
