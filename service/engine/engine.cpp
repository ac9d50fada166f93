#include "engine/engine.hpp"

#include "engine/job.hpp"
#include "engine/metrics.hpp"

#include <fmt/format.h>

#include <map>
#include <utility>

namespace gradsync::engine {

namespace {

using JobKey = std::pair<std::uint32_t, std::string>;

struct Seat {
  JobKey job;
  std::int64_t rank = 0;
  std::uint32_t uid = 0;
  std::int64_t pid = 0;
};

Error not_attached() {
  return make_error(ErrorCode::NotAttached, "this connection holds no rank", "call job.attach first");
}

Error unknown_job(const std::string& job) {
  Error error = make_error(
      ErrorCode::UnknownJob, fmt::format("no job '{}' is known here for your uid", job), "status.get lists the jobs"
  );
  error.path = "job";
  error.job = job;
  return error;
}

}  // namespace

struct Engine::State {
  State(EngineOptions given, device::Lane& lane, PlannerPort& planner, EventSink sink, EngineMetrics& registered)
      : options(std::move(given)),
        events(std::move(sink)),
        metrics(registered),
        buffers(options, lane),
        context{options, lane, planner, buffers, events, metrics, {}, 1, 1} {}

  const EngineOptions options;
  const EventSink events;
  EngineMetrics& metrics;
  BufferTable buffers;
  JobContext context;
  std::map<JobKey, std::unique_ptr<Job>> jobs;
  std::map<SessionId, Seat> seats;
  std::map<SessionId, Error> evicted;  ///< why a session that still has a connection holds no rank any more
  SessionId next_session = 1;
  bool draining = false;
  bool wide = false;

  Job* job_of(SessionId session) {
    const auto seat = seats.find(session);
    return seat == seats.end() ? nullptr : jobs.at(seat->second.job).get();
  }

  [[nodiscard]] Error absent(SessionId session) const {
    const auto why = evicted.find(session);
    return why == evicted.end() ? not_attached() : why->second;
  }

  void evict(SessionId session, const Error& why) {
    seats.erase(session);
    evicted[session] = why;
    constexpr std::size_t kRemembered = 4096;
    if (evicted.size() > kRemembered) {
      evicted.erase(evicted.begin());
    }
  }

  /// After every event: forget empty jobs, adapt the lane's width, refresh gauges.
  void settle() {
    bool all_wait = false;
    for (auto it = jobs.begin(); it != jobs.end();) {
      if (it->second->empty()) {
        it = jobs.erase(it);
        continue;
      }
      ++it;
    }
    if (!jobs.empty()) {
      all_wait = true;
      for (const auto& [key, job] : jobs) {
        all_wait = all_wait && (!job->stepping() || job->wants_width());
      }
    }
    if (all_wait != wide) {
      wide = all_wait;
      context.lane.submit(device::SetWidth{wide});
    }
    metrics.jobs.Set(static_cast<double>(jobs.size()));
    metrics.ranks_attached.Set(static_cast<double>(seats.size()));
    metrics.arena_bytes.Set(static_cast<double>(buffers.total_bytes()));
  }

  void supersede(Job& job, std::int64_t restart_count) {
    const Error error = make_error(
        ErrorCode::Superseded,
        fmt::format("restart {} of job '{}' has begun and took over", restart_count, job.name()),
        "this process belongs to an older restart and should end"
    );
    const JobKey key{job.uid(), job.name()};
    job.end(error);
    for (auto it = seats.begin(); it != seats.end();) {
      const auto next = std::next(it);
      if (it->second.job == key) {
        evict(it->first, error);
      }
      it = next;
    }
    jobs.erase(key);
  }

  void leave(SessionId session, const std::string& why, bool lost) {
    const auto found = seats.find(session);
    if (found == seats.end()) {
      evicted.erase(session);
      return;
    }
    const Seat seat = found->second;
    seats.erase(found);
    jobs.at(seat.job)->leave(seat.rank, why, lost);
  }

  Job* job_of_plan(device::PlanId plan) {
    for (const auto& [key, job] : jobs) {
      if (job->owns_plan(plan)) {
        return job.get();
      }
    }
    return nullptr;
  }

  Job* job_of_buffer(std::uint64_t buffer) {
    for (const auto& [key, job] : jobs) {
      if (job->owns_buffer(buffer)) {
        return job.get();
      }
    }
    return nullptr;
  }

  [[nodiscard]] Result<const Job*> find(std::optional<std::uint32_t> uid, const std::string& name) const {
    for (const auto& [key, job] : jobs) {
      if (key.second == name && (!uid || key.first == *uid)) {
        return job.get();
      }
    }
    return unknown_job(name);
  }

  void on(device::Mapped&) {}

  void on(device::Unmapped&) {}

  void on(device::Unloaded&) {}

  void on(device::Loaded& report) {
    if (Job* job = job_of_plan(report.plan)) {
      job->on_loaded(report.plan);
    }
  }

  void on(device::Reduced& report) {
    if (Job* job = job_of_plan(report.plan)) {
      job->on_reduced(report);
    }
  }

  void on(device::Finished& report) {
    if (Job* job = job_of_plan(report.plan)) {
      job->on_finished(std::move(report));
    }
  }

  void on(device::Scaled& report) {
    if (Job* job = job_of_plan(report.plan)) {
      job->on_scaled(report);
    }
  }

  void on(device::Aborted& report) {
    if (Job* job = job_of_plan(report.plan)) {
      job->on_aborted(report);
    }
  }

  void on(device::Failed& report) {
    if (report.buffer != 0) {
      buffers.on_map_failed(report.buffer);
    }
    if (Job* job = report.plan != 0 ? job_of_plan(report.plan) : job_of_buffer(report.buffer)) {
      job->on_lane_failed(report);
    }
  }
};

Engine::Engine(
    EngineOptions options, device::Lane& host_lane, PlannerPort& planner, EventSink events, EngineMetrics& metrics
)
    : state_(std::make_unique<State>(std::move(options), host_lane, planner, std::move(events), metrics)) {}

Engine::~Engine() = default;

Result<AttachResult> Engine::attach(const AttachRequest& request) {
  State& state = *state_;
  if (state.draining) {
    return make_error(
        ErrorCode::Draining, "the daemon is shutting down and takes no new ranks", "attach to its successor"
    );
  }
  const EngineLimits& limits = state.options.limits;
  if (request.job.empty() || request.job.size() > 256) {
    return invalid_params("job", fmt::format("a job name has 1 to 256 bytes, this one {}", request.job.size()));
  }
  if (request.world_size < 1 || request.world_size > limits.world_size) {
    return invalid_params(
        "world_size", fmt::format("world_size is {}, it must be 1 to {}", request.world_size, limits.world_size)
    );
  }
  if (request.rank < 0 || request.rank >= request.world_size) {
    return invalid_params("rank", fmt::format("rank is {}, it must be 0 to {}", request.rank, request.world_size - 1));
  }
  if (const Result<void> valid = plan::validate_meshes(request.meshes, request.world_size); !valid) {
    return valid.error();
  }
  const JobKey key{request.uid, request.job};
  auto found = state.jobs.find(key);
  if (found != state.jobs.end() && request.restart_count > found->second->restart_count()) {
    state.supersede(*found->second, request.restart_count);
    found = state.jobs.end();
  }
  if (found != state.jobs.end()) {
    if (const Result<void> allowed = found->second->may_attach(request); !allowed) {
      return allowed.error();
    }
  }
  const SessionId before = found == state.jobs.end() ? 0 : found->second->holder(request.rank);
  if (before == 0 && static_cast<std::int64_t>(state.seats.size()) >= limits.sessions) {
    return make_error(
        ErrorCode::LimitExceeded,
        fmt::format("{} ranks are attached, the limit sessions is {}", state.seats.size(), limits.sessions),
        "raise limits.sessions"
    );
  }
  if (found == state.jobs.end()) {
    found = state.jobs.emplace(key, std::make_unique<Job>(state.context, request)).first;
  }
  Job& job = *found->second;
  const SessionId session = state.next_session++;
  if (before != 0) {
    const Error error = make_error(
        ErrorCode::Superseded,
        fmt::format("rank {} of job '{}' was attached anew", request.rank, request.job),
        "use the newer connection"
    );
    if (job.resumes(request)) {
      state.buffers.rename_session(before, session);
    } else {
      job.leave(request.rank, "was attached anew by its own process", false);
    }
    state.evict(before, error);
  }
  state.seats[session] = Seat{key, request.rank, request.uid, request.pid};
  const AttachResult result = job.attach(request, session);
  state.settle();
  return result;
}

Result<void> Engine::detach(SessionId session) {
  State& state = *state_;
  if (!state.job_of(session)) {
    return state.absent(session);
  }
  state.leave(session, "detached", false);
  state.settle();
  return {};
}

Result<void> Engine::pause(SessionId session, bool paused) {
  State& state = *state_;
  Job* job = state.job_of(session);
  if (!job) {
    return state.absent(session);
  }
  job->pause(state.seats.at(session).rank, paused);
  return {};
}

void Engine::connection_lost(SessionId session) {
  if (Job* job = state_->job_of(session)) {
    job->connection_lost(state_->seats.at(session).rank);
  } else {
    state_->evicted.erase(session);
  }
}

void Engine::process_exited(SessionId session) {
  const auto seat = state_->seats.find(session);
  if (seat == state_->seats.end()) {
    return;
  }
  state_->leave(session, fmt::format("died: process {} ended", seat->second.pid), true);
  state_->settle();
}

Result<BufferGrant> Engine::allocate(SessionId session, std::uint64_t size_bytes) {
  State& state = *state_;
  const auto seat = state.seats.find(session);
  if (seat == state.seats.end()) {
    return state.absent(session);
  }
  Result<BufferGrant> grant =
      state.buffers.allocate(session, seat->second.uid, seat->second.pid, size_bytes, state.context.now);
  state.settle();
  return grant;
}

Result<void> Engine::release(SessionId session, std::uint64_t buffer) {
  if (!state_->job_of(session)) {
    return state_->absent(session);
  }
  Result<void> released = state_->buffers.release(session, buffer);
  state_->settle();
  return released;
}

Result<Engine::TakenFd> Engine::take_fd(const std::string& token, std::uint32_t uid, std::int64_t pid) {
  return state_->buffers.take(token, uid, pid, state_->context.now);
}

void Engine::declare(SessionId session, DeclareRequest request, Reply<DeclareResult> reply) {
  if (Job* job = state_->job_of(session)) {
    job->declare(state_->seats.at(session).rank, std::move(request), std::move(reply));
    state_->settle();
  } else {
    reply(state_->absent(session));
  }
}

void Engine::bucket_ready(SessionId session, const BucketReady& ready) {
  if (Job* job = state_->job_of(session)) {
    job->bucket_ready(state_->seats.at(session).rank, ready);
  }
}

void Engine::tensor_unused(SessionId session, const TensorUnused& unused) {
  if (Job* job = state_->job_of(session)) {
    job->tensor_unused(state_->seats.at(session).rank, unused);
  }
}

void Engine::finish(SessionId session, FinishRequest request, Reply<StepReport> reply) {
  if (Job* job = state_->job_of(session)) {
    job->finish(state_->seats.at(session).rank, std::move(request), std::move(reply));
    state_->settle();
  } else {
    reply(state_->absent(session));
  }
}

void Engine::clip(SessionId session, ClipRequest request, Reply<StepReport> reply) {
  if (Job* job = state_->job_of(session)) {
    job->clip(state_->seats.at(session).rank, request, std::move(reply));
    state_->settle();
  } else {
    reply(state_->absent(session));
  }
}

std::vector<JobStatus> Engine::status(std::optional<std::uint32_t> uid) const {
  std::vector<JobStatus> all;
  for (const auto& [key, job] : state_->jobs) {
    if (!uid || key.first == *uid) {
      all.push_back(job->status());
    }
  }
  return all;
}

Result<std::vector<StepReport>> Engine::stats(
    std::optional<std::uint32_t> uid, const std::string& name, std::int64_t last
) const {
  const Result<const Job*> job = state_->find(uid, name);
  if (!job) {
    return job.error();
  }
  return (*job)->reports(last);
}

Result<std::shared_ptr<const plan::Plan>> Engine::plan_of(std::optional<std::uint32_t> uid, const std::string& name)
    const {
  const Result<const Job*> job = state_->find(uid, name);
  if (!job) {
    return job.error();
  }
  std::shared_ptr<const plan::Plan> plan = (*job)->plan();
  if (!plan) {
    Error error = make_error(
        ErrorCode::NotDeclared,
        fmt::format("job '{}' has no committed plan yet", name),
        "wait until every rank declared"
    );
    error.job = name;
    return error;
  }
  return plan;
}

void Engine::on_lane_report(device::LaneReport report) {
  std::visit([this](auto& value) { state_->on(value); }, report);
  state_->settle();
}

void Engine::on_plan(PlanOutcome outcome) {
  // Tickets are unique over all jobs; every other job ignores it.
  for (const auto& [key, job] : state_->jobs) {
    job->on_plan(outcome);
  }
  state_->settle();
}

void Engine::advance(TimePoint now) {
  State& state = *state_;
  state.context.now = now;
  bool any = false;
  for (auto& [key, job] : state.jobs) {
    const std::optional<TimePoint> due = job->next_deadline();
    if (due && *due <= now) {
      job->on_time();
      any = true;
    }
  }
  if (any) {
    // A rank that ran out of time has left its job: its seat goes too.
    std::erase_if(state.seats, [&](const auto& seat) {
      return state.jobs.at(seat.second.job)->holder(seat.second.rank) != seat.first;
    });
    state.settle();
  }
}

std::optional<TimePoint> Engine::next_deadline() const {
  std::optional<TimePoint> earliest;
  for (const auto& [key, job] : state_->jobs) {
    const std::optional<TimePoint> due = job->next_deadline();
    if (due && (!earliest || *due < *earliest)) {
      earliest = due;
    }
  }
  return earliest;
}

void Engine::drain() { state_->draining = true; }

bool Engine::idle() const {
  for (const auto& [key, job] : state_->jobs) {
    if (!job->idle()) {
      return false;
    }
  }
  return true;
}

}  // namespace gradsync::engine
