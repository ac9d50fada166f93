#include "engine/plan/plan_collectives.hpp"

#include "device/nccl/communicator_table.hpp"
#include "engine/peers/sums/node_communicators.hpp"
#include "engine/peers/sums/node_plan.hpp"
#include "plan/check/words.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

namespace gradsync::engine {

namespace {

/// Collectives add up what is not rounded, on as many communicators as a worker may have.
std::optional<Error> refuse_collectives(
    const plan::Plan& plan, const device::LaneCommunicators& communicators, bool on_gpu
) {
  const std::string otherwise = on_gpu ? "" : "set [nccl] cpu_gradients to sockets on all nodes, or ";
  if (plan.options.partial_sums != plan::PartialSums::Exact && !communicators.needed.empty()) {
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
            "gradients of this node are summed over {} different sets of nodes or GPUs, and a worker has {} "
            "communicators at most",
            communicators.needed.size(),
            device::CommunicatorTable::kMost
        ),
        otherwise + "place ranks so that meshes cut fewer sets of nodes"
    );
  }
  return std::nullopt;
}

Error on_cpu_beside_gpu(std::size_t rank, std::size_t other) {
  Error error = make_error(
      ErrorCode::UnsupportedPlacement,
      fmt::format(
          "rank {} has its gradients in memory of a CPU, and rank {} on a GPU: memory of a CPU and of a GPU is not "
          "summed together",
          rank,
          other
      ),
      "have all ranks' gradients on GPUs, or none"
  );
  error.path = "buffer";
  error.ranks = {static_cast<std::int64_t>(rank), static_cast<std::int64_t>(other)};
  return error;
}

}  // namespace

const std::vector<SiteNumber>& sites_by_rank(const PlanRequest& request) {
  return request.site_of_rank.empty() ? request.node_of_rank : request.site_of_rank;
}

Result<std::vector<LaneShare>> shares_of_sites(const PlanRequest& request, const plan::Plan& plan) {
  const std::vector<SiteNumber>& site_of_rank = sites_by_rank(request);
  std::vector<std::uint32_t> buckets(plan.buckets.size());
  std::iota(buckets.begin(), buckets.end(), 0u);
  std::vector<LaneShare> shares;
  std::vector<std::size_t> first;  // rank of each
  for (std::size_t rank = 0; rank < request.lane_of_rank.size(); ++rank) {
    if (request.node_of_rank[rank] == request.node &&
        std::ranges::count(shares, site_of_rank[rank], &LaneShare::site) == 0) {
      shares.push_back({request.lane_of_rank[rank], buckets, site_of_rank[rank]});
      first.push_back(rank);
    }
  }
  const auto first_where = [&](bool on_host) {
    const auto found = std::ranges::find_if(shares, [&](const LaneShare& share) {
      return (share.lane == device::kHostLane) == on_host;
    });
    return found == shares.end() ? std::nullopt
                                 : std::optional(first[static_cast<std::size_t>(found - shares.begin())]);
  };
  const std::optional<std::size_t> on_cpu = first_where(true);
  const std::optional<std::size_t> on_gpu = on_cpu ? first_where(false) : std::nullopt;
  if (on_gpu) {
    return on_cpu_beside_gpu(*on_cpu, *on_gpu);
  }
  for (std::size_t rank = 0; on_cpu && rank < request.node_of_rank.size(); ++rank) {
    if (site_of_rank[rank] != request.node_of_rank[rank]) {  // behind a node with several sites, which are GPUs
      return on_cpu_beside_gpu(*on_cpu, rank);
    }
  }
  return shares;
}

bool lies_on_gpu(const PreparedPlan& prepared) { return prepared.shares.front().lane != device::kHostLane; }

std::optional<Error> use_collectives(
    PreparedPlan& prepared, device::LaneNodes& nodes, const plan::CollectivesByBucket& collectives
) {
  device::LaneCommunicators communicators = lane_communicators_of(*prepared.plan, nodes);
  if (communicators.needed.empty() && !lies_on_gpu(prepared)) {
    return std::nullopt;
  }
  if (std::optional<Error> refusal = refuse_collectives(*prepared.plan, communicators, lies_on_gpu(prepared))) {
    return refusal;
  }
  nodes.staging_bytes = std::max(nodes.staging_bytes, collective_staging_of(nodes, collectives));
  nodes.communicators = std::move(communicators);
  prepared.linked.clear();
  prepared.cpu_collectives = !lies_on_gpu(prepared);
  return std::nullopt;
}

std::optional<Error> refuse_offers(const PreparedPlan& prepared, std::size_t most) {
  const auto offers_of = [](const device::LaneNodes& nodes) {
    return nodes.communicators ? nodes.communicators->needed.size() : 0;
  };
  std::size_t offers = offers_of(std::get<device::LanePlan>(prepared.layout).nodes);
  for (const device::LaneNodes& nodes : prepared.other_sites) {
    offers += offers_of(nodes);
  }
  if (offers <= most) {
    return std::nullopt;
  }
  return make_error(
      ErrorCode::LimitExceeded,
      fmt::format(
          "{} GPUs of this node are members of {} communicators together, and a node has {} of them at most",
          prepared.shares.size(),
          offers,
          most
      ),
      "place ranks so that meshes cut fewer sets of GPUs, or on fewer GPUs of a node"
  );
}

}  // namespace gradsync::engine
