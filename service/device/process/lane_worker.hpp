#pragma once
// The worker's side of a process lane: a host lane that is told by messages what to do, and answers by messages.

#include "base/unique_fd.hpp"
#include "device/host/host_lane.hpp"

namespace gradsync::device {

/// Executes what comes over `socket`, on the calling thread and those of a HostLane, until the supervisor closes its
/// end; then finishes what is queued. Throws DeviceError for what no supervisor sends, and where a report cannot be
/// sent. This process is killed when the thread that started it ends.
void serve_lane(UniqueFd socket, HostLaneOptions options);

}  // namespace gradsync::device
