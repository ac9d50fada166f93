#pragma once
// What collectives need of a GPU beside NCCL: memory, and streams that say how far they are. Thread: that of the lane,
// but for `use_on_this_thread`.

#include "device/nccl/nccl_abi.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>

namespace gradsync::device {

class CollectiveStream {
 public:
  virtual ~CollectiveStream() = default;  ///< when nothing runs on it any more

  [[nodiscard]] virtual NcclStream* handle() = 0;

  /// Puts a mark behind everything that was enqueued so far: the first, the second, ...
  virtual void mark() = 0;

  /// How many marks the stream has passed. Waits for nothing. Throws DeviceError where the device failed.
  [[nodiscard]] virtual std::uint64_t passed() = 0;
};

class CollectiveDevice {
 public:
  virtual ~CollectiveDevice() = default;

  [[nodiscard]] virtual std::unique_ptr<CollectiveStream> make_stream() = 0;

  /// Throws DeviceError. It is freed with the device.
  [[nodiscard]] virtual std::byte* allocate(std::size_t bytes) = 0;

  /// CUDA keeps the device of each thread. The thread of aborts calls it.
  virtual void use_on_this_thread() {}
};

}  // namespace gradsync::device
