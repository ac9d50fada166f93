#pragma once
// The lane of one GPU, in this process: for the process of a worker, which may hang or be killed with its driver.

#include "device/gpu/gpu_device.hpp"
#include "device/queue/lane_queue.hpp"

namespace gradsync::device {

class GpuLane final : public Lane {
 public:
  /// The sink is called on the lane's thread. Throws DeviceError where the library cannot be used.
  GpuLane(GpuDeviceOptions options, LaneSink sink);

  void submit(LaneCommand command) override;

 private:
  LaneQueue queue_;
};

}  // namespace gradsync::device
