#pragma once
// What the nodes of a job say of their communicators before an epoch connects, brought together: which instance each
// has in this epoch. Pure; the coordinator's, between READY and CONNECT.

#include "base/error.hpp"
#include "device/nccl/communicator.hpp"

#include <string>
#include <vector>

namespace gradsync::device {

struct NodeOffers {
  std::string node;
  int version = 0;                        ///< of NCCL; 0: no GPU of this node has a communicator
  std::vector<CommunicatorOffer> offers;  ///< of all of its GPUs
};

/// One id for each name, by name. An instance that every member has is kept; else there is a new id. Refused, with the
/// node: versions that differ (both are named), a member that is missing or there twice, and an instance that some
/// members have while no id was made; then nodes have to end what is idle, and to begin again.
[[nodiscard]] Result<std::vector<CommunicatorId>> agree_on_communicators(const std::vector<NodeOffers>& nodes);

}  // namespace gradsync::device
