#pragma once
// The workers of a daemon whose lanes have NCCL, without processes and threads: their queues and passes, and what their
// supervisor does when one ends. One piece of work is done when the world says so.

#include "device/lane.hpp"
#include "device/process/outstanding_commands.hpp"
#include "device/queue/lane_queue.hpp"
#include "engine/gpu_lanes.hpp"
#include "sim/collectives/nccl_network.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace gradsync::sim {

class Daemon;

/// A lane in a worker. It is kept by whatever is to happen to it.
class SteppedWorker final : public device::Lane,
                            public NcclNetwork::Host,
                            public std::enable_shared_from_this<SteppedWorker> {
 public:
  /// `gpu`: empty where its memory is that of the CPU.
  SteppedWorker(World& world, std::size_t daemon, device::LaneId id, std::string gpu);

  void submit(device::LaneCommand command) override;

  /// The process ends; its daemon, if it lives, is told of all that is outstanding.
  void kill(const std::string& why, bool silent = false);
  void stop(Duration time);

  [[nodiscard]] bool lives() const { return queue_ != nullptr; }

  // NcclNetwork::Host
  void on_nccl() override { poll_within(std::chrono::microseconds(100)); }

  [[nodiscard]] std::uint64_t epoch() const override { return epoch_; }

  [[nodiscard]] std::uint64_t attempt() const override { return attempt_; }

 private:
  void work_soon();
  void work();
  void poll_within(Duration most);
  void poll();
  void look_again();
  void take_reports();
  void tell(device::LaneReport report);
  void fail_outstanding();
  void when_it_runs(void (SteppedWorker::*what)());

  World& world_;
  std::size_t daemon_;
  std::uint64_t life_;  ///< of its daemon
  device::LaneId id_;
  std::string gpu_;
  NcclNetwork::Process process_;
  device::OutstandingCommands outstanding_;
  std::vector<device::LaneReport> reports_;
  std::unique_ptr<device::LaneQueue> queue_;  ///< null: the process has ended
  std::string why_;                           ///< it has
  std::uint64_t epoch_ = 0;
  std::uint64_t attempt_ = 0;
  TimePoint stopped_until_{};
  bool works_ = false;  ///< an event for that is on its way; likewise the next two
  bool polls_ = false;
  bool looks_ = false;
};

class SteppedWorkers final : public engine::GpuLanes {
 public:
  SteppedWorkers(World& world, std::size_t daemon) : world_(world), daemon_(daemon) {}

  [[nodiscard]] Result<device::Lane*> start(device::LaneId id, const std::string& gpu) override;

  [[nodiscard]] Result<device::Lane*> start_cpu_collectives(device::LaneId id) override { return start(id, {}); }

  [[nodiscard]] Result<void> may_collect() const override { return {}; }

  void stop(device::LaneId id) override;

  /// All of them end, because their daemon has.
  void kill_all(bool silent);

  /// One that works; null: there is none.
  [[nodiscard]] SteppedWorker* any() const;

 private:
  World& world_;
  std::size_t daemon_;
  std::map<device::LaneId, std::shared_ptr<SteppedWorker>> workers_;
};

}  // namespace gradsync::sim
