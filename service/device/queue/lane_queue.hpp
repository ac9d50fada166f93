#pragma once
// The commands of one lane, and the thread that executes them in order. The mutex guards the queue, and which attempts
// are aborted; nothing else is shared. An attempt once aborted stays aborted until its plan is unloaded, also for
// commands submitted later.
//
// `submit` puts the command into the queue and wakes the lane's thread. It executes nothing.

#include "device/queue/lane_device.hpp"

#include <atomic>
#include <functional>
#include <memory>

namespace gradsync::device {

/// The device of a lane; its passes stop at the next chunk when `cancel` is raised.
using MakeDevice = std::function<std::unique_ptr<LaneDevice>(const std::atomic<bool>& cancel)>;

class LaneQueue {
 public:
  /// Makes the device on the calling thread. The sink is called on the lane's thread.
  LaneQueue(const MakeDevice& make_device, LaneSink sink);
  ~LaneQueue();  ///< finishes what is queued
  LaneQueue(const LaneQueue&) = delete;
  LaneQueue& operator=(const LaneQueue&) = delete;

  void submit(LaneCommand command);

 private:
  class Thread;
  std::unique_ptr<Thread> thread_;
};

}  // namespace gradsync::device
