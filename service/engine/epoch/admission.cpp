#include "engine/epoch/admission.hpp"

#include "base/text/host_port.hpp"
#include "plan/mesh/mesh_difference.hpp"

#include <fmt/format.h>

#include <utility>

namespace gradsync::engine {

namespace {

Error attach_refusal(ErrorCode code, std::string path, std::string message, std::string hint) {
  Error error = make_error(code, std::move(message), std::move(hint));
  error.path = std::move(path);
  return error;
}

std::optional<Error> refuse_other_job(const JobIdentity& job, const AttachRequest& request) {
  if (request.restart_count < job.restart_count) {
    return attach_refusal(
        ErrorCode::Superseded,
        "restart_count",
        fmt::format(
            "restart {} of job '{}' is over: restart {} has begun", request.restart_count, job.name, job.restart_count
        ),
        "this process belongs to an older restart and should end"
    );
  }
  std::optional<plan::MeshDifference> found;
  const char* hint = "give every rank the same meshes: names, axes, sizes and their order";
  if (request.world_size != job.world_size) {
    found = {"world_size", "world_size", std::to_string(job.world_size), std::to_string(request.world_size)};
    hint = "give every rank the same world_size, or the new run another job name";
  } else if (request.ranks_here() != job.local_world_size) {
    found = {
        "local_world_size",
        "local_world_size",
        std::to_string(job.local_world_size),
        std::to_string(request.ranks_here())};
    hint = "every rank of a node says how many ranks of the job the node has";
  } else if (request.coordinator != job.coordinator) {
    found = {
        "coordinator", "coordinator", fmt::format("'{}'", job.coordinator), fmt::format("'{}'", request.coordinator)};
    hint = "give every rank of a node the same GRADSYNC_COORDINATOR or MASTER_ADDR";
  } else {
    found = plan::difference_of(job.meshes, request.meshes);
  }
  if (found) {
    return attach_refusal(
        ErrorCode::JobMismatch,
        found->path,
        fmt::format(
            "{} is {}, but the ranks attached to job '{}' said {}", found->what, found->other, job.name, found->first
        ),
        hint
    );
  }
  return std::nullopt;
}

std::optional<Error> refuse_taken_rank(const JobIdentity& job, const RankHolder& holder, const AttachRequest& request) {
  const bool same_process = holder.pid != 0 && holder.pid == request.pid;
  if (holder.session == 0 || same_process || resumes(holder, request)) {
    return std::nullopt;
  }
  return attach_refusal(
      ErrorCode::RankInUse,
      "rank",
      fmt::format("rank {} of job '{}' is held by the live process {}", request.rank, job.name, holder.pid),
      "end that process, or attach with a higher restart_count or under another job name"
  );
}

}  // namespace

Result<void> check_attach(const AttachRequest& request, std::int64_t largest_world, bool over_nodes) {
  if (request.job.empty() || request.job.size() > 256) {
    return invalid_params("job", fmt::format("a job name has 1 to 256 bytes, this one {}", request.job.size()));
  }
  if (request.world_size < 1 || request.world_size > largest_world) {
    return invalid_params(
        "world_size", fmt::format("world_size is {}, it must be 1 to {}", request.world_size, largest_world)
    );
  }
  if (request.rank < 0 || request.rank >= request.world_size) {
    return invalid_params("rank", fmt::format("rank is {}, it must be 0 to {}", request.rank, request.world_size - 1));
  }
  if (request.local_world_size < 0 || request.local_world_size > request.world_size) {
    return invalid_params(
        "local_world_size",
        fmt::format(
            "local_world_size is {}, it must be 1 to world_size, {}", request.local_world_size, request.world_size
        )
    );
  }
  if (request.ranks_here() < request.world_size && !over_nodes) {
    Error error = make_error(
        ErrorCode::NoPeers,
        fmt::format(
            "job '{}' has {} of its {} ranks on this node, and this daemon is not set up for jobs over several nodes",
            request.job,
            request.ranks_here(),
            request.world_size
        ),
        "set [peer] listen and [peer] token_file in gradsyncd.toml on every node, and restart the daemons; "
        "private ones, as of `gradsync run` and `gradsync observe`, take GRADSYNC_PEER_LISTEN and "
        "GRADSYNC_PEER_TOKEN_FILE"
    );
    error.path = "local_world_size";
    error.job = request.job;
    return error;
  }
  if (!request.coordinator.empty() && !parse_host_port(request.coordinator)) {
    return invalid_params(
        "coordinator",
        fmt::format("coordinator is '{}', it must be HOST or HOST:PORT", request.coordinator),
        "name the node of rank 0 as other nodes reach it: node0, 10.0.0.1, [fd00::1] or node0:9478"
    );
  }
  return plan::validate_meshes(request.meshes, request.world_size);
}

bool resumes(const RankHolder& holder, const AttachRequest& request) {
  return holder.session != 0 && holder.client_id == request.client_id;
}

Result<void> may_attach(const JobIdentity& job, const RankHolder& holder, bool full, const AttachRequest& request) {
  std::optional<Error> refusal = refuse_other_job(job, request);
  if (!refusal && full) {
    refusal = attach_refusal(
        ErrorCode::JobMismatch,
        "local_world_size",
        fmt::format(
            "rank {} would be rank {} of this node, and the ranks of job '{}' here said that it has {}",
            request.rank,
            job.local_world_size + 1,
            job.name,
            job.local_world_size
        ),
        "local_world_size is the number of ranks that share this daemon"
    );
  }
  if (!refusal) {
    refusal = refuse_taken_rank(job, holder, request);
  }
  if (!refusal) {
    return {};
  }
  refusal->job = job.name;
  refusal->rank = request.rank;
  return *refusal;
}

}  // namespace gradsync::engine
