// Who holds which rank.

#include "engine/job.hpp"
#include "engine/metrics.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>

namespace gradsync::engine {

Job::Job(JobContext& context, const AttachRequest& first)
    : context_(context),
      name_(first.job),
      uid_(first.uid),
      restart_count_(first.restart_count),
      meshes_(first.meshes),
      ranks_(static_cast<std::size_t>(first.world_size)),
      epoch_(context.options.first_epoch),
      history_(context.options.history) {}

Job::~Job() {
  cancel_forming();
  if (active_) {
    unload(*active_);
  }
}

bool Job::resumes(const AttachRequest& request) const {
  const Rank& rank = ranks_[index(request.rank)];
  return rank.session != 0 && rank.client_id == request.client_id;
}

Result<void> Job::may_attach(const AttachRequest& request) const {
  const auto refuse = [&](ErrorCode code, std::string path, std::string message, std::string hint) {
    Error error = make_error(code, std::move(message), std::move(hint));
    error.path = std::move(path);
    error.job = name_;
    error.rank = request.rank;
    return error;
  };
  if (request.restart_count < restart_count_) {
    return refuse(
        ErrorCode::Superseded,
        "restart_count",
        fmt::format(
            "restart {} of job '{}' is over: restart {} has begun", request.restart_count, name_, restart_count_
        ),
        "this process belongs to an older restart and should end"
    );
  }
  if (request.world_size != world_size()) {
    return refuse(
        ErrorCode::JobMismatch,
        "world_size",
        fmt::format(
            "world_size is {}, but the ranks attached to job '{}' said {}", request.world_size, name_, world_size()
        ),
        "give every rank the same world_size, or the new run another job name"
    );
  }
  if (request.meshes != meshes_) {
    return refuse(
        ErrorCode::JobMismatch,
        "meshes",
        fmt::format("the meshes differ from those of the ranks attached to job '{}'", name_),
        "give every rank the same meshes: names, axes, sizes and their order"
    );
  }
  const Rank& rank = ranks_[index(request.rank)];
  const bool same_process = rank.pid != 0 && rank.pid == request.pid;
  if (rank.session != 0 && !same_process && !resumes(request)) {
    return refuse(
        ErrorCode::RankInUse,
        "rank",
        fmt::format("rank {} of job '{}' is held by the live process {}", request.rank, name_, rank.pid),
        "end that process, or attach with a higher restart_count or under another job name"
    );
  }
  return {};
}

AttachResult Job::attach(const AttachRequest& request, SessionId session) {
  Rank& rank = ranks_[index(request.rank)];
  const bool resumed = resumes(request);
  rank.session = session;
  rank.client_id = request.client_id;
  rank.pid = request.pid;
  rank.reconnect_until.reset();
  rank.resumed = resumed;
  AttachResult result;
  result.session = session;
  result.epoch = transition_ ? epoch_ + 1 : epoch_;
  if (!resumed) {
    rank.joined_epoch = result.epoch;
  }
  result.attempt = machine_ && !transition_ ? machine_->attempt() : 0;
  result.last_step = history_.last_step();
  result.resumed = resumed;
  return result;
}

void Job::leave(std::int64_t rank_number, const std::string& why, bool lost) {
  Rank& rank = ranks_[index(rank_number)];
  if (rank.session == 0) {
    return;
  }
  context_.buffers.release_all(rank.session);
  cancel_forming();
  const Reply<DeclareResult> declaring = std::move(rank.declare_reply);
  if (rank.step_reply) {
    departed_.push_back(std::move(rank.step_reply));
  }
  // A rank that never took part in the epoch leaves nothing behind: those who wait for its seat go on waiting.
  const bool took_part = rank.committed || !departed_.empty();
  rank = Rank{};
  Error error = make_error(
      ErrorCode::RankLost,
      fmt::format("rank {} of job '{}' {}", rank_number, name_, why),
      "the gradients of the step in flight are lost: start the rank again and compute the step anew on every rank"
  );
  error.rank = rank_number;
  error.job = name_;
  error.ranks = {rank_number};
  if (lost) {
    context_.metrics.ranks_lost.Increment();
    spdlog::warn("rank lost job={} rank={} epoch={} reason=\"{}\"", name_, rank_number, epoch_, error.message);
    publish_alert("rank_lost", error.message);
  }
  if (machine_ && took_part) {
    // Who leaves by choice attaches anew with all the others, where weights are compared: each waits for what the
    // others declare then, and is not matched with what they declared before.
    redeclare_ = redeclare_ || (!lost && compares_weights());
    end_epoch(error);
  }
  follow_pauses();
  if (declaring) {
    declaring(error);
  }
}

void Job::connection_lost(std::int64_t rank_number) {
  ranks_[index(rank_number)].reconnect_until = context_.now + context_.options.deadlines.reconnect;
}

void Job::pause(std::int64_t rank, bool paused) {
  ranks_[index(rank)].paused = paused;
  follow_pauses();
}

bool Job::empty() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.session == 0; });
}

void Job::end(const Error& error) {
  cancel_forming();
  std::vector<Reply<DeclareResult>> declaring;
  for (Rank& rank : ranks_) {
    if (rank.session != 0) {
      context_.buffers.release_all(rank.session);
    }
    if (rank.step_reply) {
      departed_.push_back(std::move(rank.step_reply));
    }
    if (rank.declare_reply) {
      declaring.push_back(std::move(rank.declare_reply));
    }
    rank = Rank{};
  }
  if (machine_) {
    transition_ = error;
    run(machine_->fail(error));
  }
  for (const Reply<DeclareResult>& reply : declaring) {
    reply(error);
  }
}

}  // namespace gradsync::engine
