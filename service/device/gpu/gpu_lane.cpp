#include "device/gpu/gpu_lane.hpp"

#include <utility>

namespace gradsync::device {

GpuLane::GpuLane(GpuDeviceOptions options, LaneSink sink)
    : queue_(
          [&options](const std::atomic<bool>& cancel) {
            return std::make_unique<GpuDevice>(std::move(options), cancel);
          },
          std::move(sink)
      ) {}

void GpuLane::submit(LaneCommand command) { queue_.submit(std::move(command)); }

}  // namespace gradsync::device
