#pragma once
// One device as its lane uses it: its memory, its passes, and how it lets shorter work in between.
//
// Thread: that of the lane, but for `set_width` and `give_way`, which any thread calls.

#include "base/unique_fd.hpp"
#include "device/device_error.hpp"
#include "device/host/worker_pool.hpp"
#include "device/lane.hpp"
#include "device/loaded/layout_check.hpp"
#include "device/step/step_passes.hpp"
#include "device/transfer/node_passes.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace gradsync::device {

class LaneCollectives;

/// Mapped memory of a rank.
class LaneBuffer {
 public:
  virtual ~LaneBuffer() = default;
  [[nodiscard]] virtual BufferView for_passes() const = 0;  ///< by the addresses of the device
  [[nodiscard]] virtual BufferView for_host() const = 0;    ///< the same bytes, as this process reads them; null: never
  virtual void punch_out() const = 0;                       ///< frees the pages, also where others hold the descriptor
};

class LaneDevice {
 public:
  virtual ~LaneDevice() = default;

  [[nodiscard]] virtual std::string thread_name() const = 0;  ///< of the lane; at most 15 bytes

  /// Throws DeviceError if the descriptor is not of this size, lacks a seal, or memory ran out.
  [[nodiscard]] virtual std::unique_ptr<LaneBuffer> map(UniqueFd fd, std::uint64_t size_bytes) = 0;

  /// Memory of this device that another process exported. Throws DeviceError where it cannot be mapped, or is smaller
  /// than it was said to be.
  [[nodiscard]] virtual std::unique_ptr<LaneBuffer> map_exported(
      const ExportedMemory& /*memory*/, std::uint64_t /*size_bytes*/
  ) {
    throw no_gpu();
  }

  /// As ProbeMemory says. Throws DeviceError where a part of it fails; then nothing stays open either.
  [[nodiscard]] virtual Probe probe(const ExportedMemory& /*memory*/, std::uint64_t /*size_bytes*/) { throw no_gpu(); }

  /// Prepares the passes over a plan, once. Throws DeviceError.
  virtual void load(LoadedPlan& /*plan*/) {}

  virtual void unload(const LoadedPlan& /*plan*/) noexcept {}

  [[nodiscard]] virtual const StepPasses& passes() const = 0;

  /// The threads that add up blocks which travel over connections, of memory of the CPU; null: there are none.
  [[nodiscard]] virtual WorkerPool* transfer_pool() { return nullptr; }

  /// The passes over plans over nodes.
  [[nodiscard]] virtual NodePasses& node_passes() = 0;

  /// By which sums travel where a plan says so; null: there is no NCCL here.
  [[nodiscard]] virtual LaneCollectives* collectives() { return nullptr; }

  /// How many threads share the chunks of a plan.
  [[nodiscard]] virtual int threads() const { return 1; }

  virtual void set_width(bool /*wide*/) {}

  /// What the lane's thread does when a pass gives way.
  virtual void set_between(std::function<void()> /*between*/) {}

  /// Until it is taken back a pass that runs gives way, if the device's passes are long enough to have to.
  virtual void give_way(bool /*now*/) {}

 private:
  [[nodiscard]] static DeviceError no_gpu() {
    return {"this lane maps no memory of a GPU", "only a worker that has a GPU does"};
  }
};

}  // namespace gradsync::device
