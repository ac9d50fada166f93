#include "engine/plan/plan_collectives.hpp"

#include "device/nccl/communicator_table.hpp"
#include "engine/peers/sums/node_communicators.hpp"
#include "engine/peers/sums/node_plan.hpp"
#include "plan/check/words.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace gradsync::engine {

namespace {

/// Collectives add up what is not rounded, on as many communicators as a worker may have.
std::optional<Error> refuse_collectives(
    const plan::Plan& plan, const device::LaneCommunicators& communicators, bool on_gpu
) {
  const std::string otherwise = on_gpu ? "" : "set [nccl] cpu_gradients to sockets on all nodes, or ";
  if (plan.options.partial_sums != plan::PartialSums::Exact) {
    Error error = make_error(
        ErrorCode::UnsupportedPlacement,
        fmt::format(
            "partial_sums is {}, and gradients of this node travel by NCCL, which adds up exact partial sums alone",
            plan::name_of(plan.options.partial_sums)
        ),
        otherwise + "declare without partial_sums"
    );
    error.path = "partial_sums";
    return error;
  }
  if (communicators.needed.size() > device::CommunicatorTable::kMost) {
    return make_error(
        ErrorCode::UnsupportedPlacement,
        fmt::format(
            "gradients of this node are summed with {} different sets of nodes, and a worker has {} communicators at "
            "most",
            communicators.needed.size(),
            device::CommunicatorTable::kMost
        ),
        otherwise + "place ranks so that meshes cut fewer sets of nodes"
    );
  }
  return std::nullopt;
}

}  // namespace

std::optional<Error> refuse_several_lanes(const PlanRequest& request, const plan::Plan& plan) {
  if (request.node_of_rank.empty() || plan.options.data_path == plan::DataPath::Stats) {
    return std::nullopt;
  }
  std::optional<std::size_t> first;
  for (std::size_t rank = 0; rank < request.lane_of_rank.size(); ++rank) {
    if (request.node_of_rank[rank] != request.node) {
      continue;
    }
    first = first.value_or(rank);
    if (request.lane_of_rank[rank] == request.lane_of_rank[*first]) {
      continue;
    }
    Error error = make_error(
        ErrorCode::UnsupportedPlacement,
        fmt::format(
            "ranks {} and {} of this node have their buffers on two devices, and of a job over several nodes the "
            "gradients of each node are summed on one",
            *first,
            rank
        ),
        "start a daemon for each GPU, with a [peer] node of its own; or declare with data path stats: the framework "
        "reduces then"
    );
    error.path = "buffer";
    error.rank = static_cast<std::int64_t>(rank);
    error.ranks = {static_cast<std::int64_t>(*first), static_cast<std::int64_t>(rank)};
    return error;
  }
  return std::nullopt;
}

bool lies_on_gpu(const PreparedPlan& prepared) { return prepared.shares.front().lane != device::kHostLane; }

std::optional<Error> use_collectives(PreparedPlan& prepared, device::LaneNodes& nodes) {
  device::LaneCommunicators communicators = lane_communicators_of(*prepared.plan, nodes);
  if (communicators.needed.empty() && !lies_on_gpu(prepared)) {
    return std::nullopt;
  }
  if (std::optional<Error> refusal = refuse_collectives(*prepared.plan, communicators, lies_on_gpu(prepared))) {
    return refusal;
  }
  nodes.staging_bytes = std::max(nodes.staging_bytes, collective_staging_of(nodes));
  nodes.communicators = std::move(communicators);
  prepared.linked.clear();
  prepared.cpu_collectives = !lies_on_gpu(prepared);
  return std::nullopt;
}

}  // namespace gradsync::engine
