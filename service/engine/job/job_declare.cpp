// The declaration of a rank, and why it may be refused, until a plan is made of it.

#include "engine/job/job.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace gradsync::engine {

namespace {

/// Checks the size of a rank's buffer: it needs room for its arena, or a row for each tensor that it declares.
std::uint64_t used_bytes(const plan::Plan& plan, const plan::RankDeclaration& declaration, std::int64_t rank) {
  return plan.options.data_path == plan::DataPath::Stats ? declaration.tensors.size() * sizeof(device::StatsRow)
                                                         : plan.layout(rank).bytes();
}

}  // namespace

void Job::declare(std::int64_t rank_number, DeclareRequest request, Reply<DeclareResult> reply) {
  Rank& rank = ranks_[rank_number];
  const Result<std::uint64_t> size = context_.buffers.size_of(rank.holder.session, request.buffer);
  if (!size) {
    declaration_refused(rank_number, size.error());
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
    declaration_refused(rank_number, error);
    reply(std::move(error));
    return;
  }
  if (const VerdictReached* ruling = ruling_on(request.doubt);
      ruling != nullptr && ruling->verdict == Verdict::Unknown) {
    reply(*ruling->error);
    return;
  }
  if (repeats_committed(rank_number, request)) {
    reply(declare_result(rank_number));
    return;
  }
  perform(epochs_.on_called_again(rank_number));
  EpochMachine::Declaring declaring;
  declaring.timeout = request.timeout.value_or(context_.options.deadlines.declare);
  declaring.compares_weights = !request.declaration.weight_fingerprints.empty();
  rank.declaration =
      context_.planner.freed_elsewhere(std::make_shared<const plan::RankDeclaration>(std::move(request.declaration)));
  rank.held = std::move(request.held);
  rank.held_tensors = rank.held;
  rank.buffer = request.buffer;
  rank.comes_back = request.comes_back || request.last_done || request.doubt;
  rank.last_done = request.last_done;
  rank.doubt = request.doubt;
  apply_ruling(rank);
  rank.declare_reply = std::move(reply);
  if (rank.doubt && ruling_on(rank.doubt) == nullptr) {
    perform(TellLocals{false});  // it gets its verdict whether or not the other ranks have declared
  }
  perform(epochs_.on_declared(context_.now, rank_number, declaring));
}

/// What the rank declared itself is let go. The tensors count for who declared them first, until the last lets them go.
void Job::share_tensors(std::int64_t rank_number, SharingDeclaration sharing) {
  Rank& rank = ranks_[rank_number];
  const void* const tensors = sharing.declaration->tensors.identity();
  const auto other = std::find_if(ranks_.begin(), ranks_.end(), [tensors](const auto& numbered) {
    return numbered.second.declaration && numbered.second.declaration->tensors.identity() == tensors;
  });
  if (other != ranks_.end() && rank.held) {
    rank.held->shrink_to(sharing.memory_bytes);
    rank.held_tensors = other->second.held_tensors;
  }
  rank.declaration = context_.planner.freed_elsewhere(std::move(sharing.declaration));
}

void Job::declaration_refused(std::int64_t rank, const Error& refusal) {
  perform(epochs_.on_refused_unchecked(context_.now, rank, refusal));
}

// The answer was lost with the connection: the same call again must not make everybody declare.
bool Job::repeats_committed(std::int64_t rank_number, const DeclareRequest& request) const {
  const Rank& rank = ranks_[rank_number];
  if (!epochs_.may_repeat(rank_number) || rank.buffer != request.buffer) {
    return false;
  }
  const plan::RankDeclaration& before = *rank.declaration;
  const plan::RankDeclaration& again = request.declaration;
  return before.options == again.options && before.tensors == again.tensors &&
         before.weight_fingerprints == again.weight_fingerprints;
}

void Job::perform(const AnswerDeclare& action) {
  Rank& rank = ranks_[action.rank];
  const Reply<DeclareResult> reply = std::exchange(rank.declare_reply, {});
  if (action.error) {
    rank.declaration.reset();
    rank.held.reset();
    rank.held_tensors.reset();
    rank.buffer = 0;
  }
  if (rank.holder.session == 0) {
    ranks_.take(action.rank);
  }
  if (reply && !halted()) {
    reply(action.error ? Result<DeclareResult>(*action.error) : declare_result(action.rank));
  }
}

DeclareResult Job::declare_result(std::int64_t rank) const {
  const plan::Plan& plan = *active_->plan;
  const VerdictReached* const ruling = ruling_on(ranks_[rank].doubt);
  return {
      epochs_.epoch(),
      machine_->attempt(),
      active_->plan,
      rank,
      used_bytes(plan, *ranks_[rank].declaration, rank),
      compares(epochs_.steps()),
      grant_record(rank),
      ruling == nullptr ? std::nullopt : std::optional(ruling->verdict)};
}

std::optional<Error> Job::arena_error(std::int64_t rank_number, const plan::Plan& plan) const {
  const Rank& rank = ranks_[rank_number];
  const bool stats = plan.options.data_path == plan::DataPath::Stats;
  const std::uint64_t needed = used_bytes(plan, *rank.declaration, rank_number);
  const Result<std::uint64_t> size = context_.buffers.size_of(rank.holder.session, rank.buffer);
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

}  // namespace gradsync::engine
