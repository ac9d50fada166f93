#include "device/nccl/communicators.hpp"

#include "device/device_error.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

namespace gradsync::device {

namespace {

std::size_t size_of(NcclType type) {
  switch (type) {
    case NcclType::Float64:
      return 8;
    case NcclType::Float32:
      return 4;
    default:
      return 2;
  }
}

}  // namespace

Communicators::Communicators(
    const NcclLibrary& library, CollectiveDevice& device, CommunicatorSettings settings, std::function<void()> wake
)
    : library_(library),
      device_(device),
      settings_(std::move(settings)),
      table_(settings_.deadlines),
      aborts_(device.make_aborts(library, std::move(wake))) {}

/// What works is left to the end of the process: its members may be in use elsewhere, and nothing here is.
Communicators::~Communicators() = default;

Communicators::Job& Communicators::job_at(JobNumber number) {
  Job& job = jobs_[number];
  if (job.queue == nullptr) {
    job.queue = std::make_unique<CollectiveQueue>(library_, device_.make_stream());
  }
  return job;
}

void Communicators::make_scratch() {
  if (scratch_ == nullptr && !settings_.warm_up.empty()) {
    scratch_ = device_.allocate(*std::ranges::max_element(settings_.warm_up) * sizeof(float));
  }
}

std::vector<CommunicatorOffer> Communicators::load(
    PlanId plan,
    JobNumber job,
    const std::vector<CommunicatorSpec>& specs,
    std::vector<PlannedCollective> step,
    TimePoint now
) {
  LaunchOrder order(std::move(step));
  if (!specs.empty()) {
    make_scratch();  // too little memory refuses this plan; later it would end what works
  }
  perform(table_.want(plan, job, specs, now), now);
  try {
    std::vector<CommunicatorOffer> offers;
    for (const CommunicatorTable::Held& held : table_.held(plan)) {
      CommunicatorOffer& offer =
          offers.emplace_back(CommunicatorOffer{held.name, held.members, held.own, held.instance, {}});
      if (held.own == 0 && !held.instance) {
        NcclUniqueId id;
        library_.must(library_.get_unique_id(&id), "making the id of a communicator");
        table_.note_offered(plan, held.name, id);
        offer.id = id;
      }
    }
    orders_.emplace(plan, std::move(order));
    return offers;
  } catch (const DeviceError&) {
    perform(table_.release(plan, now), now);
    throw;
  }
}

void Communicators::end_idle(JobNumber job, TimePoint now) { perform(table_.end_idle(job, now), now); }

void Communicators::connect(PlanId plan, const std::vector<CommunicatorId>& ids, TimePoint now) {
  perform(table_.connect(plan, ids, now), now);
}

LaunchOrder& Communicators::order_of(PlanId plan) {
  const auto found = orders_.find(plan);
  if (found == orders_.end()) {
    throw DeviceError(fmt::format("plan {} has no collectives: it is not loaded", plan));
  }
  return found->second;
}

void Communicators::begin_step(PlanId plan) { order_of(plan).begin_step(); }

void Communicators::launch(
    PlanId plan,
    const PlannedCollective& planned,
    const std::byte* from,
    std::byte* to,
    std::uint64_t number,
    TimePoint now
) {
  const auto slot = table_.ready(plan, planned.communicator);
  if (!slot) {
    throw DeviceError(fmt::format("communicator {} cannot be used by plan {} now", planned.communicator, plan));
  }
  order_of(plan).take(planned);
  table_.note_use(*slot, planned.elements * size_of(planned.type), now);
  job_at(table_.job_of(plan))
      .queue->add(
          {plan, number, *slot, handles_.at(*slot).communicator, planned.kind, planned.type, from, to, planned.elements}
      );
}

void Communicators::abort(PlanId plan, TimePoint now) {
  if (!table_.knows(plan)) {
    events_.emplace_back(Aborted{plan});
    return;
  }
  order_of(plan).forget_step();
  const JobNumber number = table_.job_of(plan);
  Job& job = jobs_[number];
  job.aborting.insert(plan);
  // Nothing counts from here on, whatever the streams say; only then NCCL is told.
  CommunicatorTable::Actions actions = table_.abort(plan, now);
  drop(number);
  if (job.queue != nullptr) {
    job.ending.push_back(std::move(job.queue));  // what comes next does not wait behind it
  }
  perform(std::move(actions), now);
}

void Communicators::unload(PlanId plan, TimePoint now) {
  orders_.erase(plan);
  perform(table_.release(plan, now), now);
}

void Communicators::drop(JobNumber job) {
  const auto found = jobs_.find(job);
  if (found == jobs_.end() || found->second.queue == nullptr) {
    return;
  }
  for (const QueuedCollective& one : found->second.queue->drop()) {
    if (one.plan != 0) {
      events_.emplace_back(Operated{one.plan, one.number, false});
    }
  }
}

void Communicators::perform(CommunicatorTable::Actions actions, TimePoint now) {
  for (const CommunicatorTable::Action& action : actions) {
    std::visit([&](const auto& each) { perform(each, now); }, action);
  }
}

void Communicators::perform(const CommunicatorTable::Build& build, TimePoint now) {
  NcclConfig config;
  config.blocking = 0;
  config.max_ctas = settings_.max_ctas;
  config.cga_cluster_size = settings_.cga_cluster;
  config.traffic_class = settings_.traffic_class.value_or(kNcclUndefined);
  config.communicator_name = build.name.c_str();
  NcclCommunicator* made = nullptr;
  const NcclResult begun = library_.init_rank(&made, build.ranks, build.id, build.own, &config);
  handles_[build.slot] = {made, build.ranks, build.own};
  if (begun != NcclResult::Success && begun != NcclResult::InProgress) {
    perform(table_.on_error(build.slot, library_.words_for(begun, made), now), now);
  }
}

/// NCCL has to have made what was asked for.
NcclResult Communicators::state_of(const Handle& made) const {
  NcclResult state = NcclResult::Success;
  const NcclResult asked = library_.get_async_error(made.communicator, &state);
  if (asked != NcclResult::Success || state != NcclResult::Success) {
    return asked == NcclResult::Success ? state : asked;
  }
  int ranks = 0;
  int own = 0;
  const bool right = library_.count(made.communicator, &ranks) == NcclResult::Success && ranks == made.ranks &&
                     library_.user_rank(made.communicator, &own) == NcclResult::Success && own == made.own;
  return right ? NcclResult::Success : NcclResult::InternalError;
}

void Communicators::poll_built(CommunicatorSlot slot, TimePoint now) {
  const Handle& made = handles_.at(slot);
  const NcclResult state = state_of(made);
  if (state == NcclResult::Success) {
    perform(table_.on_built(slot), now);
  } else if (state != NcclResult::InProgress) {
    perform(table_.on_error(slot, library_.words_for(state, made.communicator), now), now);
  }
}

void Communicators::perform(const CommunicatorTable::WarmUp& warm_up, TimePoint now) {
  if (settings_.warm_up.empty()) {
    perform(table_.on_warm(warm_up.slot, now), now);
    return;
  }
  const JobNumber job = table_.job_of_slot(warm_up.slot);
  for (std::size_t at = 0; at < settings_.warm_up.size(); ++at) {
    const bool last = at + 1 == settings_.warm_up.size();
    job_at(job).queue->add(
        {0,
         last ? 1U : 0U,
         warm_up.slot,
         handles_.at(warm_up.slot).communicator,
         CollectiveKind::AllReduce,
         NcclType::Float32,
         scratch_,
         scratch_,
         settings_.warm_up[at]}
    );
  }
}

void Communicators::perform(const CommunicatorTable::AbortGroup& group, TimePoint /*now*/) {
  std::vector<GroupAborts::Member> members;
  for (const CommunicatorSlot slot : group.slots) {
    members.push_back({slot, handles_.extract(slot).mapped().communicator});
  }
  aborts_->abort(std::move(members));
}

void Communicators::perform(const CommunicatorTable::Connected& connected, TimePoint /*now*/) {
  events_.emplace_back(Connected{connected.plan});
}

void Communicators::perform(const CommunicatorTable::Broken& broken, TimePoint /*now*/) {
  drop(table_.job_of(broken.plan));
  events_.emplace_back(Broken{broken.plan, broken.message});
}

void Communicators::perform(const CommunicatorTable::Gone& gone, TimePoint /*now*/) {
  Job& job = jobs_[gone.job];
  job.ending.clear();  // their streams are empty, or it would not be gone
  for (const PlanId plan : std::exchange(job.aborting, {})) {
    events_.emplace_back(Aborted{plan});
  }
}

void Communicators::perform(const CommunicatorTable::Lose& lose, TimePoint /*now*/) {
  events_.emplace_back(Lost{lose.message});
}

void Communicators::note_done(const QueuedCollective& one, TimePoint now) {
  if (one.plan != 0) {
    events_.emplace_back(Operated{one.plan, one.number, true});
  } else if (one.number == 1) {
    perform(table_.on_warm(one.slot, now), now);
  }
}

void Communicators::go_on(Job& job, TimePoint now) {
  std::vector<QueuedCollective> done;
  std::optional<std::pair<CommunicatorSlot, std::string>> failed;
  job.queue->advance(
      [&](CommunicatorSlot slot) { return !failed && table_.counts(slot); },
      [&](CommunicatorSlot slot, const std::string& message) { failed = failed ? failed : std::pair(slot, message); },
      done
  );
  for (const QueuedCollective& one : done) {
    note_done(one, now);
  }
  if (failed) {
    perform(table_.on_error(failed->first, failed->second, now), now);
  }
}

bool Communicators::advance(TimePoint now) {
  for (const std::vector<CommunicatorSlot>& slots : aborts_->take_done()) {
    perform(table_.on_aborted(slots), now);
  }
  for (const CommunicatorSlot slot : table_.slots_in(CommunicatorState::Building)) {
    poll_built(slot, now);
  }
  bool busy = false;
  for (auto& [number, job] : jobs_) {
    if (job.queue != nullptr && !job.queue->empty()) {
      go_on(job, now);
      busy = busy || (job.queue != nullptr && !job.queue->empty());
    }
  }
  perform(table_.on_time(now), now);
  return busy || !table_.slots_in(CommunicatorState::Building).empty() ||
         !table_.slots_in(CommunicatorState::Aborting).empty();
}

}  // namespace gradsync::device
