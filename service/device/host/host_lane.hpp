#pragma once
// The lane of the CPU engine: it owns the mapped arenas and the loaded plans of all local jobs, and a pool of workers
// that lives and dies with it.

#include "device/collective/lane_collectives.hpp"
#include "device/lane.hpp"
#include "device/queue/lane_queue.hpp"

#include <optional>

namespace gradsync::device {

struct HostLaneOptions {
  int threads =
      0;  ///< that may be busy, the lane's own included; 0: the smaller of the affinity mask and the cgroup's CPUs
  MakeWire make_wire = make_socket_wire;  ///< to other nodes
  std::optional<NcclOptions> nccl = {};   ///< as HostDevice has it
};

class HostLane final : public Lane {
 public:
  /// The sink is called on the lane's thread. Starts wide.
  HostLane(HostLaneOptions options, LaneSink sink);
  void submit(LaneCommand command) override;

  void wait_until_idle() { queue_.wait_until_idle(); }  ///< as LaneQueue's

  [[nodiscard]] int threads() const { return threads_; }

 private:
  int threads_;
  LaneQueue queue_;
};

}  // namespace gradsync::device
