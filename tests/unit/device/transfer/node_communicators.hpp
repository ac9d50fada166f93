#pragma once
// The communicators of a plan over nodes, as the engine will ask lanes for them.

#include "device/lane.hpp"
#include "device/nccl/communicator_agreement.hpp"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

namespace gradsync::device {

/// What a node needs where its sums travel by collectives: a communicator for each set of nodes that it sums with. The
/// first rank of each stands for it.
inline LaneCommunicators communicators_of(const LaneNodes& nodes, const std::string& axis) {
  std::set<std::vector<plan::TransferNode>> groups;
  for (const plan::BucketTransfer& transfer : nodes.transfers) {
    for (const plan::TransferStream& stream : transfer.streams) {
      if (std::ranges::binary_search(stream.sources, nodes.node)) {
        groups.insert(stream.sources);
      }
    }
  }
  LaneCommunicators made{1, false, {}};
  for (const std::vector<plan::TransferNode>& group : groups) {
    LaneCommunicator& one = made.needed.emplace_back(LaneCommunicator{{{axis}, {}, 0}, group});
    for (const plan::TransferNode node : group) {
      one.spec.own = node == nodes.node ? static_cast<std::uint32_t>(one.spec.ranks.size()) : one.spec.own;
      one.spec.ranks.push_back(std::ranges::find(nodes.node_of_rank, node) - nodes.node_of_rank.begin());
    }
  }
  return made;
}

inline NodeOffers offers_of(std::string node, const LoadedCommunicators& loaded) {
  return {std::move(node), loaded.version, loaded.offers};
}

/// Those of a node, as all have agreed on them.
inline std::vector<CommunicatorId> ids_for(
    const LoadedCommunicators& loaded, const std::vector<CommunicatorId>& agreed
) {
  std::vector<CommunicatorId> ids;
  for (const CommunicatorOffer& offer : loaded.offers) {
    ids.push_back(*std::ranges::find(agreed, offer.name, &CommunicatorId::name));
  }
  return ids;
}

}  // namespace gradsync::device
