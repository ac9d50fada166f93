#pragma once
// What collectives need of a GPU beside NCCL: memory, and streams that say how far they are. Thread: that of the lane,
// but for `use_on_this_thread`. What else they need of the process can be taken over by a simulation: the library, a
// thread for aborts, and the time.

#include "base/clock.hpp"
#include "device/nccl/nccl_abi.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace gradsync::device {

class GroupAborts;
class NcclLibrary;

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

  /// NCCL, at this path. Throws DeviceError.
  [[nodiscard]] virtual std::unique_ptr<NcclLibrary> open(const std::string& path);

  /// What aborts this device's communicators; `wake` is called on its thread behind each group.
  [[nodiscard]] virtual std::unique_ptr<GroupAborts> make_aborts(
      const NcclLibrary& library, std::function<void()> wake
  );

  [[nodiscard]] virtual TimePoint now() const;

  /// A call of NCCL that hangs does so on a thread of its own, with which the process has to live until it ends.
  [[nodiscard]] virtual bool has_threads() const { return true; }
};

}  // namespace gradsync::device
