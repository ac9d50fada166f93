#pragma once
// What the nodes of a job say of their communicators before an epoch connects, brought together: which instance each
// has in this epoch. Pure; the coordinator's, between READY and CONNECT.

#include "base/error.hpp"
#include "device/nccl/communicator_table.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gradsync::device {

/// What one GPU says of a communicator that it is a member of.
struct CommunicatorOffer {
  std::string name;
  std::uint32_t members = 0;
  std::uint32_t own = 0;                      ///< which of them it is
  std::optional<InstanceHash> instance = {};  ///< that is there, and works
  std::optional<NcclUniqueId> id = {};        ///< of the first member, where none is there
};

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
