// Read models and events of a job.

#include "engine/job.hpp"
#include "plan/words.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace gradsync::engine {

std::string Job::forming_reason() const {
  if (transition_) {
    return "the lane stops the attempt of the epoch before";
  }
  std::vector<std::int64_t> absent;
  std::vector<std::int64_t> undeclared;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (ranks_[i].session == 0) {
      absent.push_back(static_cast<std::int64_t>(i));
    } else if (lacks_declaration(ranks_[i])) {
      undeclared.push_back(static_cast<std::int64_t>(i));
    }
  }
  if (absent.empty() && undeclared.empty()) {
    return "the plan is being loaded";
  }
  std::string text;
  if (!absent.empty()) {
    text = fmt::format("rank{} {} not attached", absent.size() > 1 ? "s" : "", fmt::join(absent, ", "));
  }
  if (!undeclared.empty()) {
    text += fmt::format(
        "{}rank{} {} not declared",
        text.empty() ? "" : "; ",
        undeclared.size() > 1 ? "s" : "",
        fmt::join(undeclared, ", ")
    );
  }
  return text;
}

bool Job::idle() const {
  const bool waiting =
      std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.declare_reply || rank.step_reply; });
  // What has begun cannot be begun anew by a successor: between the halves of a step nobody waits either.
  return !waiting && !loading_ && !(machine_ && !halted_ && machine_->begun()) && !(machine_ && machine_->busy());
}

JobStatus Job::status() const {
  JobStatus status;
  status.job = name_;
  status.uid = uid_;
  status.world_size = world_size();
  status.epoch = epoch_;
  const bool forms = forming();
  status.state = forms ? "forming" : machine_->begun() ? "stepping" : "ready";
  status.reason = forms ? "waits: " + forming_reason() : "waits for " + machine_->waits_for();
  status.attempt = machine_ ? machine_->attempt() : 0;
  status.last_step = history_.last_step();
  status.steps_committed = history_.steps_committed();
  status.steps_failed = history_.steps_failed();
  if (machine_) {
    status.plan_digest = machine_->plan().digest;
    status.tensors = static_cast<std::int64_t>(machine_->plan().tensors.size());
    status.data_path = plan::name_of(machine_->plan().options.data_path);
    status.buckets = static_cast<std::int64_t>(machine_->plan().buckets.size());
  }
  if (history_.last_commit()) {
    status.last_commit_age_s = seconds(context_.now - *history_.last_commit());
  }
  if (const StepReport* report = history_.newest()) {
    status.norm = report->norm;
    status.threshold = report->threshold;
  }
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const Rank& rank = ranks_[i];
    RankStatus entry;
    entry.rank = static_cast<std::int64_t>(i);
    entry.state = rank.session == 0      ? "absent"
                  : rank.reconnect_until ? "disconnected"
                  : rank.valid           ? "declared"
                                         : "attached";
    entry.pid = rank.pid;
    entry.paused = rank.paused;
    if (rank.session != 0) {
      entry.arena_bytes = context_.buffers.bytes_of(rank.session);
    }
    if (rank.declare_reply) {
      entry.waiting_in = "gradients.declare";
      entry.waited_s = seconds(context_.now - rank.declare_since);
    } else if (machine_ && machine_->ask_of(entry.rank)) {
      const Ask& ask = *machine_->ask_of(entry.rank);
      entry.waiting_in = method_of(ask.kind);
      entry.waited_s = seconds(context_.now - ask.since);
    }
    status.ranks.push_back(std::move(entry));
  }
  return status;
}

void Job::publish_alert(const std::string& kind, const std::string& what) const {
  if (context_.events) {
    Event event;
    event.topic = "alert";
    event.uid = uid_;
    event.job = name_;
    event.what = what;
    event.kind = kind;
    event.epoch = epoch_;
    context_.events(event);
  }
}

void Job::publish_epoch(const std::string& what) const {
  if (context_.events) {
    Event event;
    event.topic = "epoch";
    event.uid = uid_;
    event.job = name_;
    event.what = what;
    event.epoch = epoch_;
    context_.events(event);
  }
}

}  // namespace gradsync::engine
