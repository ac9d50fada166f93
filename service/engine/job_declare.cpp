// What a rank declares, and why it may be refused, until a plan is made of it.

#include "engine/job.hpp"

#include <fmt/format.h>

#include <utility>

namespace gradsync::engine {

namespace {

/// What a rank's buffer needs: room for its arena, or a row for each tensor that it declares.
std::uint64_t used_bytes(const plan::Plan& plan, const plan::RankDeclaration& declaration, std::int64_t rank) {
  return plan.options.data_path == plan::DataPath::Stats ? declaration.tensors.size() * sizeof(device::StatsRow)
                                                         : plan.layout(rank).bytes();
}

}  // namespace

void Job::declare(std::int64_t rank_number, DeclareRequest request, Reply<DeclareResult> reply) {
  Rank& rank = ranks_[index(rank_number)];
  const Result<std::uint64_t> size = context_.buffers.size_of(rank.session, request.buffer);
  if (!size) {
    reply(size.error());
    return;
  }
  if (static_cast<std::int64_t>(request.declaration.tensors.size()) > context_.options.limits.tensors) {
    Error error = make_error(
        ErrorCode::LimitExceeded,
        fmt::format(
            "{} tensors are declared, the limit tensors is {}",
            request.declaration.tensors.size(),
            context_.options.limits.tensors
        ),
        "raise limits.tensors"
    );
    error.path = "tensors";
    reply(std::move(error));
    return;
  }
  if (repeats_committed(rank, request)) {
    reply(declare_result(rank_number));
    return;
  }
  answer_declare(
      rank,
      make_error(
          ErrorCode::Superseded,
          fmt::format("rank {} called gradients.declare again while this call waited", rank_number),
          "the newer call is answered"
      )
  );
  if (rank.committed && machine_ && !transition_ && !redeclare_) {
    Error error = make_error(
        ErrorCode::StaleEpoch,
        fmt::format("rank {} declared its gradients anew", rank_number),
        "every rank has to call gradients.declare again"
    );
    error.rank = rank_number;
    redeclare_ = true;
    end_epoch(std::move(error));
  } else if (rank.committed) {
    redeclare_ = true;
  }
  cancel_forming();
  drop_declaration(rank);
  rank.declaration =
      context_.planner.freed_elsewhere(std::make_shared<const plan::RankDeclaration>(std::move(request.declaration)));
  rank.buffer = request.buffer;
  rank.fresh = true;
  rank.last_done = request.last_done;
  rank.declare_reply = std::move(reply);
  rank.declare_since = context_.now;
  rank.declare_deadline = deadline_after(context_.now, request.timeout.value_or(context_.options.deadlines.declare));
  rank.validate_ticket = context_.next_ticket++;
  PlanRequest plan;
  plan.ticket = rank.validate_ticket;
  plan.by_rank = {rank.declaration};
  plan.meshes = meshes_;
  plan.world_size = world_size();
  plan.validate_only = true;
  context_.planner.submit(std::move(plan));
  follow_pauses();
}

// The answer was lost with the connection: the same call again must not make everybody declare.
bool Job::repeats_committed(const Rank& rank, const DeclareRequest& request) const {
  if (!rank.resumed || !rank.committed || !active_ || transition_ || redeclare_ || rank.buffer != request.buffer) {
    return false;
  }
  const plan::RankDeclaration& before = *rank.declaration;
  const plan::RankDeclaration& again = request.declaration;
  return before.options == again.options && before.tensors == again.tensors &&
         before.weight_fingerprints == again.weight_fingerprints;
}

void Job::drop_declaration(Rank& rank) {
  rank.declaration.reset();
  rank.buffer = 0;
  rank.valid = false;
  rank.fresh = false;
  rank.committed = false;
  rank.resumed = false;
  rank.validate_ticket = 0;
}

void Job::answer_declare(Rank& rank, const Result<DeclareResult>& result) const {
  const Reply<DeclareResult> reply = std::exchange(rank.declare_reply, {});
  if (reply && !halted_) {
    reply(result);
  }
}

DeclareResult Job::declare_result(std::int64_t rank) const {
  const plan::Plan& plan = *active_->plan;
  return {
      epoch_,
      machine_->attempt(),
      active_->plan,
      rank,
      used_bytes(plan, *ranks_[index(rank)].declaration, rank),
      check_next(steps_in_epoch_),
      grant_record(ranks_[index(rank)])};
}

std::optional<Error> Job::arena_error(std::int64_t rank_number, const plan::Plan& plan) const {
  const Rank& rank = ranks_[index(rank_number)];
  const bool stats = plan.options.data_path == plan::DataPath::Stats;
  const std::uint64_t needed = used_bytes(plan, *rank.declaration, rank_number);
  const Result<std::uint64_t> size = context_.buffers.size_of(rank.session, rank.buffer);
  if (size && *size >= needed) {
    return std::nullopt;
  }
  Error error = make_error(
      ErrorCode::InvalidDeclaration,
      size ? fmt::format(
                 "the {} of rank {} has {} bytes, the declared tensors need {}",
                 stats ? "table" : "arena",
                 rank_number,
                 *size,
                 needed
             )
           : fmt::format("the arena of rank {}, buffer {}, was released", rank_number, rank.buffer),
      size ? stats ? "allocate 64 bytes for each tensor that the rank declares"
                   : "allocate the sum of the tensors' bytes before sync, each rounded up to a multiple of 64, and as "
                     "much again as the largest output of each that sync scatters"
           : "that rank has to allocate a buffer and call gradients.declare again"
  );
  error.path = "buffer";
  error.rank = rank_number;
  return error;
}

/// Those who declared since the last commit have to do it again.
void Job::refuse_fresh(const Error& error) {
  for (Rank& rank : ranks_) {
    if (rank.fresh) {
      drop_declaration(rank);
      answer_declare(rank, error);
    }
  }
}

}  // namespace gradsync::engine
