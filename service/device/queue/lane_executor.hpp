#pragma once
// Executes the commands of a lane on its thread. Returns the report, or throws DeviceError.

#include "device/lane.hpp"
#include "device/loaded/loaded_plan.hpp"
#include "device/loaded/loaded_stats.hpp"
#include "device/queue/lane_device.hpp"

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace gradsync::device {

class LaneExecutor {
 public:
  LaneExecutor(LaneDevice& device, const std::atomic<bool>& cancel) : device_(device), cancel_(cancel) {}

  ~LaneExecutor();
  LaneExecutor(const LaneExecutor&) = delete;
  LaneExecutor& operator=(const LaneExecutor&) = delete;

  LaneReport operator()(MapBuffer& command);
  LaneReport operator()(UnmapBuffer& command);
  LaneReport operator()(ProbeMemory& command);
  LaneReport operator()(LoadPlan& command);
  LaneReport operator()(LoadStats& command);
  LaneReport operator()(ConnectNodes& command);
  LaneReport operator()(UnloadPlan& command);
  LaneReport operator()(ReduceBucket& command);
  LaneReport operator()(FinishStep& command);
  LaneReport operator()(MeasureBuckets& command);
  LaneReport operator()(ScaleGradients& command);
  LaneReport operator()(ReadRows& command);

  [[nodiscard]] bool loaded(PlanId plan) const { return plans_.contains(plan) || stats_plans_.contains(plan); }

  /// About how long a pass over the plan's memory takes, in the time of a byte; 0 for one that is not loaded.
  [[nodiscard]] std::uint64_t work_of(PlanId plan) const;

 private:
  LoadedPlan& usable_plan(PlanId plan);
  LoadedStats* usable_stats(PlanId plan);  ///< null: the plan is of the other kind, or none
  [[nodiscard]] std::uint64_t bytes_of(const std::vector<BufferId>& rank_buffers) const;
  [[nodiscard]] const LaneBuffer& buffer_of(std::size_t rank, BufferId buffer) const;
  void throw_if_loaded(PlanId plan) const;

  LaneDevice& device_;
  const std::atomic<bool>& cancel_;
  std::map<BufferId, std::unique_ptr<LaneBuffer>> buffers_;
  std::map<PlanId, LoadedPlan> plans_;
  std::map<PlanId, LoadedStats> stats_plans_;
};

}  // namespace gradsync::device
