#include "engine/peers/sums/node_communicators.hpp"

#include "plan/interrupt.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace gradsync::engine {

namespace {

using Nodes = std::vector<plan::TransferNode>;

std::map<Nodes, std::vector<std::string>> axes_by_nodes(const plan::Plan& plan, const device::LaneNodes& nodes) {
  std::map<Nodes, std::vector<std::string>> axes;
  for (const plan::BucketTransfer& transfer : nodes.transfers) {
    plan::interruption_point();
    for (const plan::TransferStream& stream : transfer.streams) {
      if (!std::ranges::binary_search(stream.sources, nodes.node)) {
        continue;
      }
      std::vector<std::string>& of_nodes = axes[stream.sources];
      for (const std::string& axis : plan.buckets[transfer.bucket].axes) {
        if (std::ranges::count(of_nodes, axis) == 0) {
          of_nodes.push_back(axis);
        }
      }
    }
  }
  return axes;
}

device::LaneCommunicator communicator_of(Nodes members, std::vector<std::string> axes, const device::LaneNodes& nodes) {
  device::LaneCommunicator made{{std::move(axes), {}, 0}, std::move(members)};
  for (const plan::TransferNode node : made.nodes) {
    made.spec.own = node == nodes.node ? static_cast<std::uint32_t>(made.spec.ranks.size()) : made.spec.own;
    made.spec.ranks.push_back(std::ranges::find(nodes.node_of_rank, node) - nodes.node_of_rank.begin());
  }
  return made;
}

}  // namespace

device::LaneCommunicators lane_communicators_of(const plan::Plan& plan, const device::LaneNodes& nodes) {
  device::LaneCommunicators made;
  for (auto& [members, axes] : axes_by_nodes(plan, nodes)) {
    made.needed.push_back(communicator_of(members, std::move(axes), nodes));
  }
  return made;
}

plan::CollectivesByBucket collectives_by_bucket(const device::LaneNodes& nodes) {
  plan::CollectivesByBucket by_bucket;
  for (const plan::BucketTransfer& transfer : nodes.transfers) {
    plan::interruption_point();
    by_bucket.push_back(plan::collectives_of(transfer));
  }
  return by_bucket;
}

std::uint64_t collective_staging_of(const device::LaneNodes& nodes, const plan::CollectivesByBucket& collectives) {
  std::uint64_t largest = 0;
  for (std::size_t bucket = 0; bucket < collectives.size(); ++bucket) {
    const std::uint64_t width = plan::size_of(nodes.transfers[bucket].sum);
    for (const plan::TransferCollective& one : collectives[bucket]) {
      if (std::ranges::binary_search(one.members, nodes.node)) {
        const bool scatters = one.kind == plan::TransferCollective::Kind::ReduceScatter;
        const std::uint64_t result = scatters ? plan::align_up(one.elements * width) : 0;
        largest = std::max(largest, plan::align_up(one.staged() * width) + result);
      }
    }
  }
  return 2 * largest;
}

}  // namespace gradsync::engine
