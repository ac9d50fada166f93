#pragma once
// Executes the commands of a lane on its thread. Returns the report, or throws DeviceError. A reduction of a plan over
// nodes is only begun; it goes on with `advance`, and `take_reports` has its report when it is done.

#include "base/clock.hpp"
#include "device/lane.hpp"
#include "device/loaded/loaded_plan.hpp"
#include "device/loaded/loaded_stats.hpp"
#include "device/queue/lane_device.hpp"
#include "device/transfer/node_run.hpp"
#include "device/wire/wire.hpp"

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace gradsync::device {

class LaneExecutor {
 public:
  /// `wake` is called on threads of wires: there is something to `advance` a plan with.
  LaneExecutor(
      LaneDevice& device, const std::atomic<bool>& cancel, MakeWire make_wire, std::function<void(PlanId)> wake
  )
      : device_(device), cancel_(cancel), make_wire_(std::move(make_wire)), wake_(std::move(wake)) {}

  ~LaneExecutor();
  LaneExecutor(const LaneExecutor&) = delete;
  LaneExecutor& operator=(const LaneExecutor&) = delete;

  LaneReport operator()(MapBuffer& command);
  LaneReport operator()(UnmapBuffer& command);
  LaneReport operator()(ProbeMemory& command);
  LaneReport operator()(LoadPlan& command);
  LaneReport operator()(LoadStats& command);
  std::optional<LaneReport> operator()(ConnectNodes& command);  ///< nothing: it is under way, as below
  LaneReport operator()(UnloadPlan& command);
  std::optional<LaneReport> operator()(ReduceBucket& command);  ///< nothing: it is under way
  LaneReport operator()(FinishStep& command);
  LaneReport operator()(MeasureBuckets& command);
  LaneReport operator()(ScaleGradients& command);
  LaneReport operator()(ReadRows& command);
  std::optional<LaneReport> operator()(Abort& command);

  /// Goes on with the reductions of a plan that are under way, for a fraction of a millisecond. True: there is more.
  bool advance(PlanId plan);

  /// When `poll` is to be called next; nothing: not before another command.
  [[nodiscard]] std::optional<TimePoint> next_poll() const;

  /// Looks how far collectives are, and appends the plans of which something has changed.
  void poll(std::vector<PlanId>& changed);

  /// Ends what is under way in all plans.
  void give_up_transfers();

  /// The oldest attempt of a plan of which something is under way.
  [[nodiscard]] std::optional<Tag> under_way(PlanId plan) const;

  [[nodiscard]] const std::vector<BufferId>& buffers_of(PlanId plan) const;

  /// Appends the reports of reductions that were under way.
  void take_reports(std::vector<LaneReport>& reports);

  [[nodiscard]] bool loaded(PlanId plan) const { return plans_.contains(plan) || stats_plans_.contains(plan); }

  /// About how long a pass over the plan's memory takes, in the time of a byte; 0 for one that is not loaded.
  [[nodiscard]] std::uint64_t work_of(PlanId plan) const;

 private:
  LoadedPlan& usable_plan(PlanId plan);
  LoadedStats* usable_stats(PlanId plan);  ///< null: the plan is of the other kind, or none
  void check_travels(const LoadPlan& command) const;
  [[nodiscard]] std::unique_ptr<NodeRun> make_run(PlanId id, LoadedPlan& plan, Loaded& loaded);
  [[nodiscard]] std::uint64_t bytes_of(const std::vector<BufferId>& rank_buffers) const;
  [[nodiscard]] const LaneBuffer& buffer_of(std::size_t rank, BufferId buffer) const;
  void throw_if_loaded(PlanId plan) const;

  LaneDevice& device_;
  const std::atomic<bool>& cancel_;
  MakeWire make_wire_;
  std::function<void(PlanId)> wake_;
  std::map<BufferId, std::unique_ptr<LaneBuffer>> buffers_;
  std::map<PlanId, LoadedPlan> plans_;
  std::map<PlanId, LoadedStats> stats_plans_;
  std::map<PlanId, std::unique_ptr<NodeRun>> runs_;  ///< of those of `plans_` that are over nodes
};

}  // namespace gradsync::device
