// Read models and events of a job.

#include "base/text/text.hpp"
#include "engine/job/job.hpp"
#include "plan/check/words.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace gradsync::engine {

bool Job::idle() const {
  const bool waits =
      epochs_.roster().any_calls() ||
      std::any_of(attempt_.calls.begin(), attempt_.calls.end(), [](const StepCall& call) { return bool(call.reply); });
  // A successor cannot repeat a step that has begun, so a job is not idle between the halves of a step, although no
  // call waits then.
  return !waits && !epochs_.loads() && !(machine_ && !halted() && machine_->begun()) && !(machine_ && machine_->busy());
}

RankStatus Job::rank_status(std::int64_t rank) const {
  RankStatus entry;
  entry.rank = rank;
  const Seat& seat = epochs_.seat(rank);
  entry.state = seat.reconnect_until ? "disconnected" : seat.declaration.valid ? "declared" : "attached";
  entry.pid = seat.pid;
  entry.paused = seat.paused;
  entry.arena_bytes = context_.buffers.bytes_of(ranks_[rank].holder.session);
  entry.measured_by = ranks_[rank].declaration ? ranks_[rank].declaration->measured_by : "";
  if (seat.call) {
    entry.waiting_in = "gradients.declare";
    entry.waited_s = seconds(context_.now - seat.call->since);
  } else if (machine_ && locals_.seat_of(rank) && machine_->ask_of(rank)) {
    const Ask& ask = *machine_->ask_of(rank);
    entry.waiting_in = method_of(ask.kind);
    entry.waited_s = seconds(context_.now - ask.since);
  }
  return entry;
}

JobStatus Job::status() const {
  JobStatus status;
  status.job = identity_.name;
  status.uid = identity_.uid;
  status.world_size = world_size();
  status.epoch = epochs_.epoch();
  const bool forms = forming();
  status.state = forms ? "forming" : machine_->begun() ? "stepping" : "ready";
  status.reason = forms ? "waits: " + lacks() : "waits for " + machine_->waits_for();
  status.attempt = machine_ ? machine_->attempt() : 0;
  status.last_step = history_.last_step();
  status.steps_committed = history_.steps_committed();
  status.steps_failed = history_.steps_failed();
  if (machine_) {
    status.plan_digest = machine_->plan().digest;
    status.tensors = static_cast<std::int64_t>(machine_->plan().tensors.size());
    status.data_path = plan::name_of(machine_->plan().options.data_path);
    if (machine_->plan().options.partial_sums != plan::PartialSums::Exact) {
      status.partial_sums = plan::name_of(machine_->plan().options.partial_sums);
    }
    status.buckets = static_cast<std::int64_t>(machine_->plan().buckets.size());
  }
  if (active_) {
    const char* const state = forms ? "connecting" : machine_->begun() ? "reducing" : "idle";
    status.communicators = active_->communicators.status(status.epoch, state, context_.now);
  }
  status.clip = policies_.status();
  if (history_.last_commit()) {
    status.last_commit_age_s = seconds(context_.now - *history_.last_commit());
  }
  if (const StepReport* report = history_.newest()) {
    status.norm = report->norm;
    status.threshold = report->threshold;
  }
  const Roster& roster = epochs_.roster();
  for (const auto& [rank, seat] : roster) {
    if (seat.taken) {
      status.ranks.push_back(rank_status(rank));
    }
  }
  status.absent = roster.absent();
  status.absent_ranks = roster.first_absent(kNamedRanks);
  return status;
}

void Job::publish_alert(const std::string& kind, const std::string& what) const {
  if (context_.events) {
    Event event;
    event.topic = "alert";
    event.uid = identity_.uid;
    event.job = identity_.name;
    event.what = what;
    event.kind = kind;
    event.epoch = epochs_.epoch();
    context_.events(event);
  }
}

void Job::publish_epoch(const std::string& what) const {
  if (context_.events) {
    Event event;
    event.topic = "epoch";
    event.uid = identity_.uid;
    event.job = identity_.name;
    event.what = what;
    event.epoch = epochs_.epoch();
    context_.events(event);
  }
}

}  // namespace gradsync::engine
