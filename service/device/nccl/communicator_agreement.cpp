#include "device/nccl/communicator_agreement.hpp"

#include "device/nccl/nccl_library.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace gradsync::device {

namespace {

struct Member {
  const NodeOffers* node = nullptr;
  const CommunicatorOffer* offer = nullptr;
};

Error refusal(ErrorCode code, const NodeOffers& node, std::string message, std::string hint) {
  Error error = make_error(code, std::move(message), std::move(hint));
  error.node = node.node;
  return error;
}

std::optional<Error> versions_that_differ(const std::vector<NodeOffers>& nodes) {
  const NodeOffers* first = nullptr;
  for (const NodeOffers& node : nodes) {
    if (node.version == 0) {
      continue;
    }
    first = first == nullptr ? &node : first;
    if (node.version != first->version) {
      return refusal(
          ErrorCode::NodeRefused,
          node,
          fmt::format(
              "node {} has NCCL {}, and node {} has NCCL {}",
              node.node,
              nccl_version_text(node.version),
              first->node,
              nccl_version_text(first->version)
          ),
          "install the same version on all nodes, or name one library in [nccl] library"
      );
    }
  }
  return std::nullopt;
}

/// Each place is taken once, and all of them say how many there are.
std::optional<Error> members_at_fault(const std::string& name, const std::vector<Member>& members) {
  const Member& first = members.front();
  std::map<std::uint32_t, const Member*> places;
  for (const Member& member : members) {
    const auto [other, taken] = places.try_emplace(member.offer->own, &member);
    if (member.offer->members != first.offer->members || member.offer->own >= first.offer->members || !taken) {
      return refusal(
          ErrorCode::PlanMismatch,
          *member.node,
          fmt::format(
              "communicator {}: node {} has member {} of {}, and node {} has member {} of {}",
              name,
              member.node->node,
              member.offer->own,
              member.offer->members,
              (taken ? first : *other->second).node->node,
              (taken ? first : *other->second).offer->own,
              first.offer->members
          ),
          "every node has to make the same plan: compare the releases of gradsyncd"
      );
    }
  }
  if (members.size() == first.offer->members) {
    return std::nullopt;
  }
  std::uint32_t missing = 0;
  while (places.contains(missing)) {
    ++missing;
  }
  return refusal(
      ErrorCode::PlanMismatch,
      *first.node,
      fmt::format("communicator {}: no node has its member {} of {}", name, missing, first.offer->members),
      "have the gradients of all nodes on GPUs, or of none; every node has to make the same plan: compare the releases "
      "of gradsyncd"
  );
}

Result<CommunicatorId> agreed(const std::string& name, const std::vector<Member>& members) {
  if (std::optional<Error> fault = members_at_fault(name, members)) {
    return *fault;
  }
  const std::optional<InstanceHash> instance = members.front().offer->instance;
  const bool kept = instance && std::ranges::all_of(members, [&](const Member& member) {
                      return member.offer->instance == instance;
                    });
  if (kept) {
    return CommunicatorId{name, *instance, {}};
  }
  const auto first = std::ranges::find_if(members, [](const Member& member) { return member.offer->own == 0; });
  if (!first->offer->id) {
    return refusal(
        ErrorCode::StaleEpoch,
        *first->node,
        fmt::format("communicator {} is on node {} and not on all others", name, first->node->node),
        "nothing has to be done: the next epoch builds it anew"
    );
  }
  return CommunicatorId{name, instance_of(*first->offer->id), first->offer->id};
}

}  // namespace

Result<std::vector<CommunicatorId>> agree_on_communicators(const std::vector<NodeOffers>& nodes) {
  if (std::optional<Error> fault = versions_that_differ(nodes)) {
    return *fault;
  }
  std::map<std::string, std::vector<Member>> by_name;
  for (const NodeOffers& node : nodes) {
    for (const CommunicatorOffer& offer : node.offers) {
      by_name[offer.name].push_back({&node, &offer});
    }
  }
  std::vector<CommunicatorId> ids;
  for (const auto& [name, members] : by_name) {
    Result<CommunicatorId> id = agreed(name, members);
    if (!id) {
      return id.error();
    }
    ids.push_back(std::move(*id));
  }
  return ids;
}

}  // namespace gradsync::device
