#pragma once
// The state of the façade: the jobs, the seats of sessions, and the way from a lane's report to its job. Thread: io.

#include "base/fair_budget.hpp"
#include "engine/engine.hpp"
#include "engine/job/job.hpp"
#include "engine/job_index.hpp"
#include "engine/memory_probes.hpp"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gradsync::engine {

struct SessionSeat {
  JobKey job;
  std::int64_t rank = 0;
  std::uint32_t uid = 0;
  std::int64_t pid = 0;
};

struct Engine::State {
  State(EngineOptions given, Lanes all, PlannerPort& planner, EventSink sink, EngineMetrics& registered);

  const EngineOptions options;
  FairBudget declared_bytes;  ///< outlives the jobs, which hold shares of it
  FairBudget report_bytes;    ///< likewise
  const EventSink events;
  EngineMetrics& metrics;
  Lanes lanes;
  BufferTable buffers;
  MemoryProbes probes;
  JobContext context;
  JobIndex index;
  std::map<JobKey, std::unique_ptr<Job>> jobs;
  std::vector<std::unique_ptr<Job>> closing;  ///< without ranks, until the lane has let go of their memory
  std::map<SessionId, SessionSeat> seats;
  FairBudget taken_seats;
  std::map<SessionId, Error> evicted;  ///< why a session that still has a connection holds no rank any more
  SessionId next_session = 1;
  bool draining = false;
  bool halted = false;

  /// Those that close included; for what concerns the whole daemon. A job knows nothing of the others, so no visit
  /// changes the list.
  template <typename Visit>
  void each_job(Visit visit) const {
    for (const auto& [key, job] : jobs) {
      visit(*job);
    }
    for (const auto& job : closing) {
      visit(*job);
    }
  }

  [[nodiscard]] Job* job_of(SessionId session) const;
  /// The same, for an event that may change the job.
  [[nodiscard]] Job* touched_job(SessionId session);
  [[nodiscard]] Error absent(SessionId session) const;
  [[nodiscard]] Result<const Job*> find(std::optional<std::uint32_t> uid, const std::string& name) const;

  /// Why this process gets no seat more, or none.
  [[nodiscard]] std::optional<Error> refuse_seat(const AttachRequest& request) const;
  void take_seat(SessionId session, const AttachRequest& request);
  void give_seat_back(SessionId session);
  void evict(SessionId session, const Error& why);
  /// Ranks that ran out of time have left their jobs: their seats go too.
  void evict_lost();
  void supersede(const JobKey& key, std::int64_t restart_count);
  /// The process of a seat attaches again: `session` takes the place of `before`, and its buffers where it resumes.
  void replace(SessionId before, SessionId session, Job& job, const AttachRequest& request);
  void leave(SessionId session, const std::string& why, bool lost);
  /// The lane of the GPU that this memory is on, which is started where it has to be, or why it is not asked: the
  /// daemon drains, or the memory does not fit.
  [[nodiscard]] Result<device::LaneId> lane_of(const ExportedBuffer& exported, const Result<void>& fits);
  /// Lets all threads work for a lane while every trainer beside it waits, else half of them.
  void follow_width();
  /// Workers of GPUs that nobody has needed for a while.
  void end_unused_lanes();
  /// After every event, for the jobs that it touched: forget empty ones, adapt the lane's width, refresh gauges.
  void settle();

  void on(device::LaneId lane, device::Mapped& report) { buffers.on_mapped(lane, report.buffer); }

  void on(device::LaneId lane, device::Probed& report) { probes.on_probed(lane, std::move(report)); }

  void on(device::LaneId, device::Unmapped&) {}

  void on(device::LaneId, device::Unloaded&) {}

  void on(device::LaneId lane, device::Loaded& report);
  void on(device::LaneId lane, device::Connected& report);
  void on(device::LaneId lane, device::Reduced& report);
  void on(device::LaneId lane, device::Finished& report);
  void on(device::LaneId lane, device::RowsRead& report);
  void on(device::LaneId lane, device::Measured& report);
  void on(device::LaneId lane, device::Scaled& report);
  void on(device::LaneId lane, device::Aborted& report);
  void on(device::LaneId lane, device::Failed& report);

 private:
  [[nodiscard]] Job* job_of_plan(device::LaneId lane, device::PlanId plan);
  [[nodiscard]] Job* job_of_buffer(std::uint64_t buffer) const;
  void close(Job& job);
};

}  // namespace gradsync::engine
