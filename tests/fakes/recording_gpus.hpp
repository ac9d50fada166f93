#pragma once
// Lanes for GPUs that keep their commands and answer when told.

#include "engine/gpu_lanes.hpp"
#include "fakes/recording_lane.hpp"

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace gradsync::fakes {

inline constexpr device::LaneId kFirstGpuLane = 1;  ///< of the GPU that is started first

class RecordingGpus final : public engine::GpuLanes {
 public:
  static constexpr const char* kGpu = "GPU-5a4d2c1e-0000-4000-8000-000000000001";
  static constexpr const char* kOther = "GPU-5a4d2c1e-0000-4000-8000-000000000002";

  [[nodiscard]] Result<device::Lane*> start(device::LaneId id, const std::string& gpu) override {
    if (gpu != kGpu && gpu != kOther) {
      return make_error(ErrorCode::NoGpu, "the daemon does not see the GPU " + gpu, "it sees another one");
    }
    return (lanes[id] = std::make_unique<RecordingLane>()).get();
  }

  [[nodiscard]] Result<device::Lane*> start_cpu_collectives(device::LaneId id) override {
    return (lanes[id] = std::make_unique<RecordingLane>()).get();
  }

  [[nodiscard]] Result<void> may_collect() const override { return {}; }

  void stop(device::LaneId id) override {
    stopped.push_back(id);
    lanes.erase(id);
  }

  /// The answer to the oldest command of a lane; false: there is none.
  bool answer_next(const std::function<void(device::LaneId, device::LaneReport)>& sink) {
    for (auto& [id, lane] : lanes) {
      if (!lane->commands.empty()) {
        sink(id, lane->answer_next());
        return true;
      }
    }
    return false;
  }

  std::map<device::LaneId, std::unique_ptr<RecordingLane>> lanes;
  std::vector<device::LaneId> stopped;
};

}  // namespace gradsync::fakes
