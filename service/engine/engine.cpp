#include "engine/engine.hpp"

#include "engine/engine_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace gradsync::engine {

namespace {

Error draining_error() {
  return make_error(
      ErrorCode::Draining, "the daemon is shutting down and takes no new ranks", "attach to its successor"
  );
}

}  // namespace

Engine::Engine(EngineOptions options, Lanes lanes, PlannerPort& planner, EventSink events, EngineMetrics& metrics)
    : state_(std::make_unique<State>(std::move(options), std::move(lanes), planner, std::move(events), metrics)) {}

Engine::~Engine() = default;

Result<AttachResult> Engine::attach(const AttachRequest& request) {
  State& state = *state_;
  if (state.draining) {
    return draining_error();
  }
  const EngineLimits& limits = state.options.limits;
  const bool over_nodes = state.options.make_peers != nullptr && state.options.other_nodes;
  if (const Result<void> valid = check_attach(request, limits.world_size, over_nodes); !valid) {
    return valid.error();
  }
  const JobKey key{request.uid, request.job};
  auto found = state.jobs.find(key);
  if (found != state.jobs.end() && request.restart_count > found->second->restart_count()) {
    state.supersede(key, request.restart_count);
    found = state.jobs.end();
  }
  if (found != state.jobs.end()) {
    if (const Result<void> allowed = found->second->may_attach(request); !allowed) {
      return allowed.error();
    }
  }
  const SessionId before = found == state.jobs.end() ? 0 : found->second->holder(request.rank);
  if (std::optional<Error> full = before == 0 ? state.refuse_seat(request) : std::nullopt) {
    state.settle();
    return std::move(*full);
  }
  if (found == state.jobs.end()) {
    found = state.jobs.emplace(key, std::make_unique<Job>(state.context, request)).first;
  }
  Job& job = *found->second;
  state.index.touch(job);
  const SessionId session = state.next_session++;
  if (before != 0) {
    state.replace(before, session, job, request);
  }
  state.take_seat(session, request);
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
  Job* job = state.touched_job(session);
  if (!job) {
    return state.absent(session);
  }
  job->pause(state.seats.at(session).rank, paused);
  state.settle();
  return {};
}

void Engine::connection_lost(SessionId session) {
  if (Job* job = state_->touched_job(session)) {
    job->connection_lost(state_->seats.at(session).rank);
    state_->settle();
  } else {
    state_->evicted.erase(session);
  }
}

void Engine::process_exited(SessionId session) {
  const auto seat = state_->seats.find(session);
  if (seat == state_->seats.end()) {
    state_->evicted.erase(session);
    return;
  }
  state_->leave(session, fmt::format("died: process {} ended", seat->second.pid), true);
  state_->settle();
}

Result<BufferGrant> Engine::allocate(SessionId session, std::uint64_t size_bytes, device::LaneId lane) {
  State& state = *state_;
  const auto seat = state.seats.find(session);
  if (seat == state.seats.end()) {
    return state.absent(session);
  }
  Result<BufferGrant> grant =
      state.buffers.allocate(session, seat->second.uid, seat->second.pid, size_bytes, lane, state.context.now);
  state.settle();
  return grant;
}

Result<BufferGrant> Engine::adopt(SessionId session, std::uint64_t size_bytes) {
  State& state = *state_;
  const auto seat = state.seats.find(session);
  if (seat == state.seats.end()) {
    return state.absent(session);
  }
  return state.buffers.adopt(session, seat->second.uid, seat->second.pid, size_bytes, state.context.now);
}

Result<device::LaneId> Engine::State::lane_of(const ExportedBuffer& exported, const Result<void>& fits) {
  if (draining) {
    return draining_error();
  }
  if (!fits) {
    return fits.error();
  }
  return lanes.of_gpu(exported.gpu);
}

void Engine::register_buffer(SessionId session, ExportedBuffer exported, Reply<RegisteredBuffer> reply) {
  State& state = *state_;
  const auto seat = state.seats.find(session);
  if (state.halted) {
    return;
  }
  if (seat == state.seats.end()) {
    reply(state.absent(session));
    return;
  }
  const Result<device::LaneId> lane = state.lane_of(exported, state.buffers.check_exported(session, exported));
  if (!lane) {
    reply(lane.error());
    return;
  }
  const Holder holder{seat->second.uid, seat->second.pid};
  state.buffers.register_exported(session, holder, std::move(exported), *lane, std::move(reply));
  state.settle();
}

void Engine::probe_memory(const Holder& holder, ExportedBuffer exported, Reply<device::Probe> reply) {
  State& state = *state_;
  if (state.halted) {
    return;
  }
  const Result<device::LaneId> lane = state.lane_of(exported, state.probes.check(holder, exported));
  if (!lane) {
    reply(lane.error());
    return;
  }
  state.probes.start(state.buffers.spare_number(), holder, std::move(exported), *lane, std::move(reply));
  state.settle();
}

Result<void> Engine::release(SessionId session, std::uint64_t buffer) {
  if (!state_->job_of(session)) {
    return state_->absent(session);
  }
  Result<void> released = state_->buffers.release(session, buffer);
  state_->settle();
  return released;
}

bool Engine::awaits_fd(const std::string& token, std::uint32_t uid, std::int64_t pid) const {
  return state_->buffers.awaits_fd(token, uid, pid, state_->context.now);
}

Result<TakenFd> Engine::exchange_fd(const std::string& token, std::uint32_t uid, std::int64_t pid, UniqueFd given) {
  Result<TakenFd> taken = state_->buffers.exchange(token, uid, pid, std::move(given), state_->context.now);
  state_->settle();
  return taken;
}

FairBudget& Engine::declared_bytes() { return state_->declared_bytes; }

void Engine::declare(SessionId session, DeclareRequest request, Reply<DeclareResult> reply) {
  if (state_->halted) {
    return;
  }
  Job* job = state_->touched_job(session);
  if (job && state_->draining) {
    reply(draining_error());  // other ranks that it needs may not attach any more
  } else if (job) {
    job->declare(state_->seats.at(session).rank, std::move(request), std::move(reply));
    state_->settle();
  } else {
    reply(state_->absent(session));
  }
}

void Engine::declaration_refused(SessionId session, const Error& refusal) {
  Job* job = state_->touched_job(session);
  if (job && !state_->draining && !state_->halted) {
    job->declaration_refused(state_->seats.at(session).rank, refusal);
    state_->settle();
  }
}

void Engine::bucket_ready(SessionId session, const BucketReady& ready) {
  if (Job* job = state_->touched_job(session); job && !job->halted()) {
    job->bucket_ready(state_->seats.at(session).rank, ready);
    state_->settle();
  }
}

void Engine::tensor_unused(SessionId session, const TensorUnused& unused) {
  if (Job* job = state_->touched_job(session); job && !job->halted()) {
    job->tensor_unused(state_->seats.at(session).rank, unused);
    state_->settle();
  }
}

void Engine::finish(SessionId session, FinishRequest request, Reply<RankReport> reply) {
  Job* job = state_->touched_job(session);
  if (state_->halted || (job && job->halted())) {
    return;
  }
  if (job) {
    job->finish(state_->seats.at(session).rank, std::move(request), std::move(reply));
    state_->settle();
  } else {
    reply(state_->absent(session));
  }
}

Result<PolicyExport> Engine::export_policies(SessionId session) const {
  const Job* job = state_->job_of(session);
  return job ? job->export_policies() : Result<PolicyExport>(state_->absent(session));
}

void Engine::import_policies(SessionId session, ImportRequest request, Reply<RankReport> reply) {
  Job* job = state_->touched_job(session);
  if (state_->halted || (job && job->halted())) {
    return;
  }
  if (job) {
    job->import_policies(state_->seats.at(session).rank, std::move(request), std::move(reply));
    state_->settle();
  } else {
    reply(state_->absent(session));
  }
}

void Engine::clip(SessionId session, ClipRequest request, Reply<RankReport> reply) {
  Job* job = state_->touched_job(session);
  if (state_->halted || (job && job->halted())) {
    return;
  }
  if (job) {
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

Result<std::vector<std::shared_ptr<const StepReport>>> Engine::stats(
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

void Engine::on_lane_report(device::LaneId lane, device::LaneReport report) {
  state_->lanes.note_report(lane, state_->context.now);
  std::visit([&](auto& value) { state_->on(lane, value); }, report);
  state_->settle();
}

void Engine::on_plan(PlanOutcome outcome) {
  if (state_->halted) {
    return;
  }
  const auto asked = state_->context.tickets.extract(outcome.ticket);
  const auto job = asked ? state_->jobs.find(asked.mapped()) : state_->jobs.end();
  if (job != state_->jobs.end()) {
    state_->index.touch(*job->second);
    job->second->on_plan(outcome);  // a job of the same name that came after it does not know the ticket
    state_->settle();
  }
}

void Engine::on_peer_events(JobNumber job, PeerEvents events) {
  const auto found = state_->context.by_number.find(job);
  if (found != state_->context.by_number.end()) {
    state_->index.touch(*found->second);
    found->second->on_peer_events(std::move(events));
    state_->settle();
  }
}

void Engine::advance(TimePoint now) {
  State& state = *state_;
  state.context.now = now;
  if (const std::optional<TimePoint> due = next_deadline(); !due || *due > now) {
    return;
  }
  for (Job* const job : state.index.due(now)) {
    state.index.touch(*job);
    job->on_time();
  }
  state.settle();
}

std::optional<TimePoint> Engine::next_deadline() const {
  const std::optional<TimePoint> job = state_->index.next_deadline();
  const std::optional<TimePoint> lane = state_->lanes.next_end();
  return job && lane ? std::min(*job, *lane) : job ? job : lane;
}

void Engine::drain() {
  state_->draining = true;
  for (const auto& [key, job] : state_->jobs) {
    state_->index.touch(*job);
    job->drain(draining_error());
  }
  state_->settle();
}

bool Engine::idle() const {
  for (const auto& [key, job] : state_->jobs) {
    if (!job->idle()) {
      return false;
    }
  }
  return state_->closing.empty();
}

void Engine::halt() {
  State& state = *state_;
  state.draining = true;
  state.halted = true;
  state.buffers.forget_waiting();
  state.probes.forget();
  state.each_job([&state](Job& job) {
    state.index.touch(job);
    job.halt();
  });
  state.settle();
}

std::uint64_t Engine::looks_at_jobs() const { return state_->index.looks(); }

bool Engine::at_rest() const {
  bool all = true;
  state_->each_job([&](const Job& job) { all = all && job.at_rest(); });
  return all;
}

}  // namespace gradsync::engine
