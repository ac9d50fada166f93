// Decides which process holds which rank.

#include "engine/job/job.hpp"
#include "engine/metrics.hpp"
#include "plan/mesh_difference.hpp"

#include <fmt/format.h>

#include <utility>

namespace gradsync::engine {

namespace {

Error attach_refusal(ErrorCode code, std::string path, std::string message, std::string hint) {
  Error error = make_error(code, std::move(message), std::move(hint));
  error.path = std::move(path);
  return error;
}

}  // namespace

Job::Job(JobContext& context, const AttachRequest& first)
    : context_(context),
      identity_{first.job, first.uid, first.restart_count, first.meshes},
      epochs_(first.job, first.world_size, context.options.first_epoch, context.options.deadlines, context.next_ticket),
      attempt_(0),  // until a plan is committed, no rank calls
      policies_(
          {first.uid, first.job, first.restart_count},
          context.options.policy_directory,
          context.metrics.policies,
          [this](const char* kind, const std::string& what) { publish_alert(kind, what); }
      ),
      history_(context.options.history) {}

Job::~Job() { perform(UnloadPlan{}); }

bool Job::resumes(const AttachRequest& request) const {
  const Rank& rank = ranks_[request.rank];
  return rank.session != 0 && rank.client_id == request.client_id;
}

std::optional<Error> Job::refuse_other_job(const AttachRequest& request) const {
  if (request.restart_count < identity_.restart_count) {
    return attach_refusal(
        ErrorCode::Superseded,
        "restart_count",
        fmt::format(
            "restart {} of job '{}' is over: restart {} has begun",
            request.restart_count,
            identity_.name,
            identity_.restart_count
        ),
        "this process belongs to an older restart and should end"
    );
  }
  std::optional<plan::MeshDifference> found;
  const char* hint = "give every rank the same meshes: names, axes, sizes and their order";
  if (request.world_size != world_size()) {
    found = {"world_size", "world_size", std::to_string(world_size()), std::to_string(request.world_size)};
    hint = "give every rank the same world_size, or the new run another job name";
  } else {
    found = plan::difference_of(identity_.meshes, request.meshes);
  }
  if (found) {
    return attach_refusal(
        ErrorCode::JobMismatch,
        found->path,
        fmt::format(
            "{} is {}, but the ranks attached to job '{}' said {}",
            found->what,
            found->other,
            identity_.name,
            found->first
        ),
        hint
    );
  }
  return std::nullopt;
}

std::optional<Error> Job::refuse_taken_rank(const AttachRequest& request) const {
  const Rank& rank = ranks_[request.rank];
  const bool same_process = rank.pid != 0 && rank.pid == request.pid;
  if (rank.session == 0 || same_process || resumes(request)) {
    return std::nullopt;
  }
  return attach_refusal(
      ErrorCode::RankInUse,
      "rank",
      fmt::format("rank {} of job '{}' is held by the live process {}", request.rank, identity_.name, rank.pid),
      "end that process, or attach with a higher restart_count or under another job name"
  );
}

Result<void> Job::may_attach(const AttachRequest& request) const {
  std::optional<Error> refusal = refuse_other_job(request);
  if (!refusal) {
    refusal = refuse_taken_rank(request);
  }
  if (!refusal) {
    return {};
  }
  refusal->job = identity_.name;
  refusal->rank = request.rank;
  return *refusal;
}

AttachResult Job::attach(const AttachRequest& request, SessionId session) {
  Rank& rank = ranks_[request.rank];
  AttachResult result;
  result.session = session;
  result.epoch = epochs_.coming_epoch();
  result.attempt = machine_ && !epochs_.ending() ? machine_->attempt() : 0;
  result.last_step = history_.last_step();
  result.resumed = resumes(request);
  epochs_.on_joined(request.rank, {request.pid, result.resumed});
  rank.session = session;
  rank.client_id = request.client_id;
  rank.pid = request.pid;
  return result;
}

void Job::leave(std::int64_t rank, const std::string& why, bool lost) {
  using Leaving = EpochMachine::Leaving;
  perform(epochs_.on_left(context_.now, rank, why, lost ? Leaving::Lost : Leaving::ByChoice));
}

void Job::pause(std::int64_t rank, bool paused) {
  epochs_.on_paused(context_.now, rank, paused);
  follow_pauses();
}

}  // namespace gradsync::engine
