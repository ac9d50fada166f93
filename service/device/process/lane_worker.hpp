#pragma once
// The worker's side of a process lane: a lane that is told by messages what to do, and answers by messages.

#include "base/unique_fd.hpp"
#include "device/lane.hpp"

#include <functional>
#include <memory>

namespace gradsync::device {

/// The lane that the worker has.
using MakeLane = std::function<std::unique_ptr<Lane>(LaneSink)>;

/// Has its lane execute what comes over `socket`, which the calling thread reads until the supervisor closes its end;
/// then finishes what is queued. Throws DeviceError for what no supervisor sends, and where a report cannot be
/// sent. This process is killed when the thread that started it ends.
void serve_lane(UniqueFd socket, const MakeLane& make_lane);

}  // namespace gradsync::device
