#include "engine/engine_state.hpp"

#include "engine/metrics.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace gradsync::engine {

Engine::State::State(
    EngineOptions given, device::Lane& lane, PlannerPort& planner, EventSink sink, EngineMetrics& registered
)
    : options(std::move(given)),
      events(std::move(sink)),
      metrics(registered),
      buffers(options, lane),
      context{options, lane, planner, buffers, events, metrics, {}, 1, 1, [this] { follow_width(); }} {}

Job* Engine::State::job_of(SessionId session) {
  const auto seat = seats.find(session);
  return seat == seats.end() ? nullptr : jobs.at(seat->second.job).get();
}

Error Engine::State::absent(SessionId session) const {
  const auto why = evicted.find(session);
  if (why != evicted.end()) {
    return why->second;
  }
  return make_error(ErrorCode::NotAttached, "this connection holds no rank", "call job.attach first");
}

Result<const Job*> Engine::State::find(std::optional<std::uint32_t> uid, const std::string& name) const {
  for (const auto& [key, job] : jobs) {
    if (key.second == name && (!uid || key.first == *uid)) {
      return job.get();
    }
  }
  Error error = make_error(
      ErrorCode::UnknownJob, fmt::format("no job '{}' is known here for your uid", name), "status.get lists the jobs"
  );
  error.path = "job";
  error.job = name;
  return error;
}

void Engine::State::evict(SessionId session, const Error& why) {
  seats.erase(session);
  evicted[session] = why;
  constexpr std::size_t kRemembered = 4096;
  if (evicted.size() > kRemembered) {
    evicted.erase(evicted.begin());
  }
}

void Engine::State::evict_lost() {
  for (auto it = seats.begin(); it != seats.end();) {
    const auto [session, seat] = *it++;
    if (jobs.at(seat.job)->holder(seat.rank) == session) {
      continue;
    }
    Error error = make_error(
        ErrorCode::RankLost,
        fmt::format(
            "rank {} of job '{}' lost its connection and did not come back within {:.1f} s",
            seat.rank,
            seat.job.second,
            seconds(options.deadlines.reconnect)
        ),
        "call job.attach again, then allocate and declare"
    );
    error.job = seat.job.second;
    error.rank = seat.rank;
    evict(session, error);
  }
}

void Engine::State::supersede(const JobKey& key, std::int64_t restart_count) {
  auto node = jobs.extract(key);
  const Error error = make_error(
      ErrorCode::Superseded,
      fmt::format("restart {} of job '{}' has begun and took over", restart_count, key.second),
      "this process belongs to an older restart and should end"
  );
  for (auto it = seats.begin(); it != seats.end();) {
    const auto [session, seat] = *it++;
    if (seat.job == key) {
      evict(session, error);
    }
  }
  node.mapped()->end(error);
  close(std::move(node.mapped()));
}

void Engine::State::leave(SessionId session, const std::string& why, bool lost) {
  const auto found = seats.find(session);
  if (found == seats.end()) {
    evicted.erase(session);
    return;
  }
  const Seat seat = found->second;
  seats.erase(found);
  jobs.at(seat.job)->leave(seat.rank, why, lost);
}

void Engine::State::close(std::unique_ptr<Job> job) {
  job->release_policies();
  if (!job->quiet()) {
    closing.push_back(std::move(job));
  }
}

void Engine::State::settle() {
  for (auto it = jobs.begin(); it != jobs.end();) {
    if (it->second->empty()) {
      close(std::move(it->second));
      it = jobs.erase(it);
    } else {
      ++it;
    }
  }
  for (const auto& [key, job] : jobs) {
    if (draining && job->idle() && !job->halted()) {
      job->halt();  // its next step is for the successor, also while other jobs are waited for
    }
  }
  std::erase_if(closing, [](const auto& job) { return job->quiet(); });
  follow_width();
  metrics.jobs.Set(static_cast<double>(jobs.size()));
  metrics.ranks_attached.Set(static_cast<double>(seats.size()));
  metrics.arena_bytes.Set(static_cast<double>(buffers.total_bytes()));
}

void Engine::State::follow_width() {
  const bool all_wait = !jobs.empty() && std::all_of(jobs.begin(), jobs.end(), [](const auto& entry) {
    return !entry.second->stepping() || entry.second->wants_width();
  });
  if (all_wait != wide) {
    wide = all_wait;
    context.lane.submit(device::SetWidth{wide});
  }
}

Job* Engine::State::job_of_plan(device::PlanId plan) const {
  Job* owner = nullptr;
  each_job([&](Job& job) { owner = job.owns_plan(plan) ? &job : owner; });
  return owner;
}

Job* Engine::State::job_of_buffer(std::uint64_t buffer) const {
  for (const auto& [key, job] : jobs) {
    if (job->owns_buffer(buffer)) {
      return job.get();
    }
  }
  return nullptr;
}

void Engine::State::on(device::Loaded& report) {
  if (Job* job = job_of_plan(report.plan)) {
    job->on_loaded(report.plan);
  }
}

void Engine::State::on(device::Reduced& report) {
  if (Job* job = job_of_plan(report.plan)) {
    job->on_reduced(report);
  }
}

void Engine::State::on(device::Finished& report) {
  if (Job* job = job_of_plan(report.plan)) {
    job->on_finished(std::move(report));
  }
}

void Engine::State::on(device::Scaled& report) {
  if (Job* job = job_of_plan(report.plan)) {
    job->on_scaled(report);
  }
}

void Engine::State::on(device::Aborted& report) {
  if (Job* job = job_of_plan(report.plan)) {
    job->on_aborted(report);
  }
}

void Engine::State::on(device::Failed& report) {
  if (report.buffer != 0) {
    buffers.on_map_failed(report.buffer);
  }
  if (Job* job = report.plan != 0 ? job_of_plan(report.plan) : job_of_buffer(report.buffer)) {
    job->on_lane_failed(report);
  }
}

}  // namespace gradsync::engine
