#pragma once
// What the façade holds: the jobs, who sits where, and the way from a lane's report to its job. Thread: io.

#include "engine/engine.hpp"
#include "engine/job.hpp"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gradsync::engine {

using JobKey = std::pair<std::uint32_t, std::string>;  ///< uid and name

struct Seat {
  JobKey job;
  std::int64_t rank = 0;
  std::uint32_t uid = 0;
  std::int64_t pid = 0;
};

struct Engine::State {
  State(EngineOptions given, device::Lane& lane, PlannerPort& planner, EventSink sink, EngineMetrics& registered);

  const EngineOptions options;
  const EventSink events;
  EngineMetrics& metrics;
  BufferTable buffers;
  JobContext context;
  std::map<JobKey, std::unique_ptr<Job>> jobs;
  std::vector<std::unique_ptr<Job>> closing;  ///< without ranks, until the lane has let go of their memory
  std::map<SessionId, Seat> seats;
  std::map<SessionId, Error> evicted;  ///< why a session that still has a connection holds no rank any more
  SessionId next_session = 1;
  bool draining = false;
  bool halted = false;
  bool wide = false;

  /// Those that close included. A job knows nothing of the others, so no visit changes the list.
  template <typename Visit>
  void each_job(Visit visit) const {
    for (const auto& [key, job] : jobs) {
      visit(*job);
    }
    for (const auto& job : closing) {
      visit(*job);
    }
  }

  [[nodiscard]] Job* job_of(SessionId session);
  [[nodiscard]] Error absent(SessionId session) const;
  [[nodiscard]] Result<const Job*> find(std::optional<std::uint32_t> uid, const std::string& name) const;

  void evict(SessionId session, const Error& why);
  /// Ranks that ran out of time have left their jobs: their seats go too.
  void evict_lost();
  void supersede(const JobKey& key, std::int64_t restart_count);
  void leave(SessionId session, const std::string& why, bool lost);
  /// As many threads as work for the lane while every trainer waits, else half of them.
  void follow_width();
  /// After every event: forget empty jobs, adapt the lane's width, refresh gauges.
  void settle();

  void on(device::Mapped&) {}

  void on(device::Unmapped&) {}

  void on(device::Unloaded&) {}

  void on(device::Loaded& report);
  void on(device::Reduced& report);
  void on(device::Finished& report);
  void on(device::Scaled& report);
  void on(device::Aborted& report);
  void on(device::Failed& report);

 private:
  [[nodiscard]] Job* job_of_plan(device::PlanId plan) const;
  [[nodiscard]] Job* job_of_buffer(std::uint64_t buffer) const;
  void close(std::unique_ptr<Job> job);
};

}  // namespace gradsync::engine
