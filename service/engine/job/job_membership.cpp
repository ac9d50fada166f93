// Which process holds which rank.

#include "engine/job/job.hpp"
#include "engine/metrics.hpp"
#include "engine/peers/alone_peers.hpp"

namespace gradsync::engine {

namespace {

std::unique_ptr<Peers> make_peers(const MakePeers& make, JobNumber number, const AttachRequest& first) {
  std::unique_ptr<Peers> peers = make ? make(number, first) : nullptr;
  return peers ? std::move(peers) : std::make_unique<AlonePeers>();
}

}  // namespace

Job::Job(JobContext& context, const AttachRequest& first)
    : context_(context),
      number_(context.next_job++),
      identity_{
          first.job,
          first.uid,
          first.restart_count,
          first.world_size,
          first.meshes,
          first.ranks_here(),
          first.coordinator},
      peers_(make_peers(context.options.make_peers, number_, first)),
      epochs_(
          first.job,
          Roster(first.world_size, first.ranks_here()),
          peers_->alone() ? context.options.first_epoch : 1,  // other nodes say the number, which may be any
          context.options.deadlines,
          context.next_ticket,
          peers_->node()
      ),
      locals_(LocalRanks::all(first.world_size)),
      declared_(std::make_shared<plan::DeclarationPool>(first.meshes)),
      attempt_(0),  // until a plan is committed, no rank calls
      policies_(
          {first.uid, first.job, first.restart_count, peers_->alone()},
          context.options.policy_directory,
          context.metrics.policies,
          [this](const char* kind, const std::string& what) { publish_alert(kind, what); }
      ),
      history_(context.options.history, context.report_bytes, {first.uid, first.pid}),
      gauge_(context.metrics.job_gauges.of(first.uid, first.job)) {
  context_.by_number.emplace(number_, this);
}

Job::~Job() {
  context_.by_number.erase(number_);
  perform(UnloadPlan{});
}

AttachResult Job::attach(const AttachRequest& request, SessionId session) {
  Rank& rank = ranks_[request.rank];
  AttachResult result;
  result.session = session;
  result.epoch = epochs_.coming_epoch();
  result.attempt = machine_ && !epochs_.ending() ? machine_->attempt() : 0;
  result.last_step = history_.last_step();
  result.resumed = engine::resumes(rank.holder, request);
  epochs_.on_joined(request.rank, {request.pid, result.resumed});
  rank.holder = {session, request.client_id, request.pid};
  return result;
}

void Job::leave(std::int64_t rank, const std::string& why, bool lost) {
  using Leaving = EpochMachine::Leaving;
  perform(epochs_.on_left(context_.now, rank, why, lost ? Leaving::Lost : Leaving::ByChoice));
}

void Job::pause(std::int64_t rank, bool paused) {
  epochs_.on_paused(context_.now, rank, paused);
  tell_pauses();
  follow_pauses();
}

void Job::tell_pauses() {
  if (!peers_->alone()) {
    LocalsPaused told;
    for (const auto& [number, seat] : epochs_.roster()) {
      if (seat.paused) {
        told.ranks.push_back(number);
      }
    }
    perform(peers_->tell(std::move(told)));
  }
}

}  // namespace gradsync::engine
