#include "engine/engine_state.hpp"

#include "base/assert.hpp"
#include "engine/metrics.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>

namespace gradsync::engine {

Engine::State::State(EngineOptions given, Lanes all, PlannerPort& planner, EventSink sink, EngineMetrics& registered)
    : options(std::move(given)),
      declared_bytes(options.limits.declared_bytes, options.own_uid),
      report_bytes(options.limits.report_bytes, options.own_uid),
      events(std::move(sink)),
      metrics(registered),
      lanes(std::move(all)),
      buffers(options, lanes),
      probes(lanes, options.own_uid),
      context{
          .options = options,
          .lanes = lanes,
          .planner = planner,
          .declared_bytes = declared_bytes,
          .report_bytes = report_bytes,
          .buffers = buffers,
          .events = events,
          .metrics = metrics,
          .now = {},
          .follow_width = [this] { follow_width(); }},
      index(lanes),
      taken_seats(static_cast<std::uint64_t>(options.limits.sessions), options.own_uid) {}

Job* Engine::State::job_of(SessionId session) const {
  const auto seat = seats.find(session);
  return seat == seats.end() ? nullptr : jobs.at(seat->second.job).get();
}

Job* Engine::State::touched_job(SessionId session) {
  Job* const job = job_of(session);
  if (job != nullptr) {
    index.touch(*job);
  }
  return job;
}

Error Engine::State::absent(SessionId session) const {
  const auto why = evicted.find(session);
  if (why != evicted.end()) {
    return why->second;
  }
  return make_error(ErrorCode::NotAttached, "this connection holds no rank", "call job.attach first");
}

Result<const Job*> Engine::State::find(std::optional<std::uint32_t> uid, const std::string& name) const {
  const auto found =
      uid ? jobs.find({*uid, name})
          : std::find_if(jobs.begin(), jobs.end(), [&](const auto& job) { return job.first.second == name; });
  if (found != jobs.end()) {
    return found->second.get();
  }
  Error error = make_error(
      ErrorCode::UnknownJob, fmt::format("no job '{}' is known here for your uid", name), "status.get lists the jobs"
  );
  error.path = "job";
  error.job = name;
  return error;
}

std::optional<Error> Engine::State::refuse_seat(const AttachRequest& request) const {
  const auto refused = taken_seats.refuse({request.uid, request.pid});
  if (!refused) {
    return std::nullopt;
  }
  return make_error(
      ErrorCode::LimitExceeded,
      fmt::format(
          "{} ranks of {} are attached, its limit is {} (the limit sessions is {})",
          refused->held,
          refused->whose,
          refused->most,
          taken_seats.most()
      ),
      "raise limits.sessions"
  );
}

void Engine::State::take_seat(SessionId session, const AttachRequest& request) {
  seats[session] = SessionSeat{{request.uid, request.job}, request.rank, request.uid, request.pid};
  taken_seats.add({request.uid, request.pid});
}

void Engine::State::give_seat_back(SessionId session) {
  if (const auto seat = seats.find(session); seat != seats.end()) {
    taken_seats.take({seat->second.uid, seat->second.pid});
    seats.erase(seat);
  }
}

void Engine::State::evict(SessionId session, const Error& why) {
  give_seat_back(session);
  evicted[session] = why;
  constexpr std::size_t kRemembered = 4096;
  if (evicted.size() > kRemembered) {
    evicted.erase(evicted.begin());
  }
}

void Engine::State::evict_lost() {
  if (context.vacated.empty()) {
    return;
  }
  for (const SessionId session : std::exchange(context.vacated, {})) {
    const auto found = seats.find(session);
    if (found == seats.end()) {
      continue;
    }
    const SessionSeat seat = found->second;
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

void Engine::State::replace(SessionId before, SessionId session, Job& job, const AttachRequest& request) {
  if (job.resumes(request)) {
    buffers.rename_session(before, session);
  } else {
    job.leave(request.rank, "was attached anew by its own process", false);
  }
  evict(
      before,
      make_error(
          ErrorCode::Superseded,
          fmt::format("rank {} of job '{}' was attached anew", request.rank, request.job),
          "use the newer connection; two models of one process need a job each, by name"
      )
  );
}

void Engine::State::supersede(const JobKey& key, std::int64_t restart_count) {
  Job& job = *jobs.at(key);
  index.touch(job);
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
  job.end(error);
  close(job);
}

void Engine::State::leave(SessionId session, const std::string& why, bool lost) {
  const auto found = seats.find(session);
  if (found == seats.end()) {
    evicted.erase(session);
    return;
  }
  const SessionSeat seat = found->second;
  give_seat_back(session);
  Job& job = *jobs.at(seat.job);
  index.touch(job);
  job.leave(seat.rank, why, lost);
}

void Engine::State::close(Job& job) {
  job.release_policies();
  job.facts.closing = true;
  closing.push_back(std::move(jobs.extract(job.key()).mapped()));
}

void Engine::State::settle() {
  evict_lost();
  bool closes = false;
  for (Job* const job : index.touched()) {
    if (!job->facts.closing && job->empty()) {
      close(*job);
    }
    if (draining && !job->facts.closing && job->idle() && !job->halted()) {
      job->halt();  // its next step is for the successor, also while other jobs are waited for
    }
    closes = closes || job->facts.closing;
  }
  index.settle();
  if (closes) {
    std::erase_if(closing, [this](const auto& job) {
      const bool quiet = job->quiet();
      if (quiet) {
        index.forget(*job);
      }
      return quiet;
    });
  }
  end_unused_lanes();
  follow_width();
  metrics.jobs.Set(static_cast<double>(jobs.size()));
  metrics.ranks_attached.Set(static_cast<double>(seats.size()));
  metrics.arena_bytes.Set(static_cast<double>(buffers.total_bytes()));
}

void Engine::State::end_unused_lanes() {
  lanes.end_unused(
      [this](device::LaneId lane) { return buffers.on_lane(lane) || probes.on_lane(lane); },
      context.now,
      options.deadlines.unused_gpu
  );
}

void Engine::State::follow_width() {
  index.count_computing();
  for (Lanes::Entry& entry : lanes) {
    const bool wide = !jobs.empty() && entry.computing == 0;
    if (wide != entry.wide) {
      entry.wide = wide;
      entry.lane->submit(device::SetWidth{wide});
    }
  }
}

Job* Engine::State::job_of_plan(device::LaneId lane, device::PlanId plan) {
  const auto owner = context.plans.find(plan);
  if (owner == context.plans.end()) {
    return nullptr;
  }
  GRADSYNC_ASSERT(owner->second->runs_on(lane), "a lane reports on plans that it was given");
  index.touch(*owner->second);
  return owner->second;
}

Job* Engine::State::job_of_buffer(std::uint64_t buffer) const {
  Job* const job = job_of(buffers.session_of(buffer));
  return job != nullptr && job->owns_buffer(buffer) ? job : nullptr;
}

void Engine::State::on(device::LaneId lane, device::Loaded& report) {
  if (Job* job = job_of_plan(lane, report.plan)) {
    job->on_loaded(lane, report);
  }
}

void Engine::State::on(device::LaneId lane, device::Connected& report) {
  if (Job* job = job_of_plan(lane, report.plan)) {
    job->on_connected(report.plan);
  }
}

void Engine::State::on(device::LaneId lane, device::Reduced& report) {
  if (Job* job = job_of_plan(lane, report.plan)) {
    job->on_reduced(lane, report);
  }
}

void Engine::State::on(device::LaneId lane, device::Finished& report) {
  if (Job* job = job_of_plan(lane, report.plan)) {
    job->on_finished(lane, std::move(report));
  }
}

void Engine::State::on(device::LaneId lane, device::RowsRead& report) {
  if (Job* job = job_of_plan(lane, report.plan)) {
    job->on_rows_read(lane, std::move(report));
  }
}

void Engine::State::on(device::LaneId lane, device::Measured& report) {
  if (Job* job = job_of_plan(lane, report.plan)) {
    job->on_measured(lane, std::move(report));
  }
}

void Engine::State::on(device::LaneId lane, device::Scaled& report) {
  if (Job* job = job_of_plan(lane, report.plan)) {
    job->on_scaled(lane, report);
  }
}

void Engine::State::on(device::LaneId lane, device::Aborted& report) {
  if (Job* job = job_of_plan(lane, report.plan)) {
    job->on_aborted(lane, report);
  }
}

void Engine::State::on(device::LaneId lane, device::Failed& report) {
  if (report.lane_lost) {
    if (lanes.lose(lane)) {
      if (lanes.gpu_of(lane).empty()) {
        spdlog::error("the worker of CPUs that has NCCL was lost reason=\"{}\"", report.message);
      } else {
        spdlog::error("the worker of a GPU was lost gpu={} reason=\"{}\"", lanes.gpu_of(lane), report.message);
      }
      buffers.lose_lane(lane);
    }
  }
  if (report.buffer != 0 && probes.on_failed(lane, report)) {
    return;
  }
  const bool of_gpu = std::ranges::none_of(lanes, [lane](const Lanes::Entry& entry) {
    return entry.id == lane && entry.cpu_collectives;  // a lane may be forgotten before its last report is here
  });
  if (report.lane_lost && of_gpu) {
    report.hint += report.hint.empty() ? "" : "; ";
    report.hint += "register the buffers again, with a higher generation, then declare: another worker takes its place";
  }
  if (report.buffer != 0) {
    buffers.on_map_failed(lane, report);
  }
  if (Job* job = report.plan != 0 ? job_of_plan(lane, report.plan) : job_of_buffer(report.buffer)) {
    index.touch(*job);
    job->on_lane_failed(lane, report);
  }
}

std::vector<JobKey> Engine::recorded_jobs() const {
  std::vector<JobKey> keys;
  for (const auto& [key, job] : state_->jobs) {
    keys.push_back(key);
  }
  return keys;
}

std::optional<FlightDump> Engine::dump_of(const JobKey& key) const {
  const auto job = state_->jobs.find(key);
  return job == state_->jobs.end() ? std::nullopt : std::optional(job->second->dump());
}

}  // namespace gradsync::engine
