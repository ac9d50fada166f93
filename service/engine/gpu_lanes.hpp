#pragma once
// Where the engine gets lanes in worker processes: one for each GPU, started when the first buffer of its GPU is
// registered, and one for memory of CPUs whose sums travel by NCCL, started when the first plan needs it.

#include "base/error.hpp"
#include "device/lane.hpp"

#include <string>

namespace gradsync::engine {

class GpuLanes {
 public:
  virtual ~GpuLanes() = default;

  /// A lane for the GPU of this UUID; its reports come with `id`. Returns at once. NoGpu: this daemon has none for it.
  [[nodiscard]] virtual Result<device::Lane*> start(device::LaneId id, const std::string& gpu) = 0;

  /// A lane for memory of CPUs that has NCCL, as far as this daemon has one; as `start` otherwise.
  [[nodiscard]] virtual Result<device::Lane*> start_cpu_collectives(device::LaneId id) = 0;

  /// Whether lanes of GPUs may sum gradients with other nodes. UnsupportedPlacement: they may not, and why.
  [[nodiscard]] virtual Result<void> may_collect() const = 0;

  /// The lane was lost, or nothing uses it any more: its worker ends. Returns at once; its last reports may still come.
  virtual void stop(device::LaneId id) = 0;
};

}  // namespace gradsync::engine
