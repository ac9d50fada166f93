#pragma once
// The lane of the CPU engine: one thread that owns the mapped arenas and the loaded plans of all local jobs, and a pool
// of workers that lives and dies with it. The mutex guards the queue, and which attempts are aborted; nothing else is
// shared. An attempt once aborted stays aborted until its plan is unloaded, also for commands submitted later.
//
// `submit` puts the command into the queue and wakes the lane's thread. It executes nothing.

#include "device/lane.hpp"

#include <memory>

namespace gradsync::device {

struct HostLaneOptions {
  int threads =
      0;  ///< that may be busy, the lane's own included; 0: the smaller of the affinity mask and the cgroup's CPUs
};

class HostLane final : public Lane {
 public:
  /// The sink is called on the lane's thread. Starts wide.
  HostLane(HostLaneOptions options, LaneSink sink);
  ~HostLane() override;
  HostLane(const HostLane&) = delete;
  HostLane& operator=(const HostLane&) = delete;

  void submit(LaneCommand command) override;

  [[nodiscard]] int threads() const;

 private:
  class Queue;
  std::unique_ptr<Queue> queue_;
};

}  // namespace gradsync::device
