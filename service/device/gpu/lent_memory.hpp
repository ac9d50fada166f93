#pragma once
// A piece of a GPU's memory that this process lends to others by a handle, as a trainer does: for trials of workers.
//
// Thread: one, which CUDA gives the device.

#include "device/gpu/kernel_library.hpp"

#include <cstddef>
#include <cstdint>
#include <string>

namespace gradsync::device {

/// What the driver says of a GPU without using it.
struct GpuDescription {
  enum ComputeMode : int { kDefault = 0, kProhibited = 2, kExclusiveProcess = 3 };

  std::string name;
  int compute_mode = kDefault;
  int capability = 0;  ///< 90 for 9.0
  std::uint64_t memory_bytes = 0;
};

class LentMemory {
 public:
  /// Multiples of this are exported without neighbours.
  static constexpr std::uint64_t kBytes = std::uint64_t{2} << 20;

  /// `uuid`: "GPU-…"; empty: the first device. Throws DeviceError where the library cannot be used. Opens nothing yet.
  LentMemory(const std::string& library, std::string uuid) : library_(library), uuid_(std::move(uuid)) {}

  LentMemory(const LentMemory&) = delete;
  LentMemory& operator=(const LentMemory&) = delete;
  ~LentMemory();  ///< those that have mapped it keep it

  /// Throws DeviceError where there is no such device.
  [[nodiscard]] GpuDescription describe() const;

  /// Opens the GPU and allocates kBytes that begin with `content`; the 64 bytes of its handle. Once. Throws
  /// DeviceError.
  [[nodiscard]] std::string lend(const std::string& content);

  /// What its first bytes are now. Throws DeviceError.
  [[nodiscard]] std::string read(std::size_t bytes) const;

 private:
  KernelLibrary library_;
  std::string uuid_;
  void* memory_ = nullptr;
};

}  // namespace gradsync::device
