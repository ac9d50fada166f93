#include "device/host/host_lane.hpp"

#include "device/host/host_device.hpp"
#include "device/host/thread_count.hpp"

#include <utility>

namespace gradsync::device {

HostLane::HostLane(HostLaneOptions options, LaneSink sink)
    : threads_(options.threads > 0 ? options.threads : available_threads()),
      queue_(
          [this, nccl = std::move(options.nccl)](const std::atomic<bool>& cancel) {
            return std::make_unique<HostDevice>(threads_, cancel, nccl);
          },
          std::move(sink),
          std::move(options.make_wire)
      ) {}

void HostLane::submit(LaneCommand command) { queue_.submit(std::move(command)); }

}  // namespace gradsync::device
