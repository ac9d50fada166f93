#pragma once
// Where the engine gets lanes for GPUs: a worker process each, started when the first buffer of its GPU is registered.

#include "base/error.hpp"
#include "device/lane.hpp"

#include <string>

namespace gradsync::engine {

class GpuLanes {
 public:
  virtual ~GpuLanes() = default;

  /// A lane for the GPU of this UUID; its reports come with `id`. Returns at once. NoGpu: this daemon has none for it.
  [[nodiscard]] virtual Result<device::Lane*> start(device::LaneId id, const std::string& gpu) = 0;

  /// The lane was lost, or nothing uses it any more: its worker ends. Returns at once; its last reports may still come.
  virtual void stop(device::LaneId id) = 0;
};

}  // namespace gradsync::engine
