#pragma once
// How lanes and daemons speak of a communicator: by its name, its members, and which instance of it there is. Values.

#include "device/nccl/nccl_abi.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gradsync::device {

using JobNumber = std::uint64_t;  ///< of a job of this daemon, over all of its epochs

/// A communicator as a plan needs it. Its name is plan::communicator_name of axes and ranks.
struct CommunicatorSpec {
  std::vector<std::string> axes;
  std::vector<std::int64_t> ranks;  ///< that stand for its members, in their order
  std::uint32_t own = 0;            ///< which of them is this GPU
};

/// What names the instance that an id made, where the id itself is not needed any more.
using InstanceHash = std::uint64_t;
[[nodiscard]] InstanceHash instance_of(const NcclUniqueId& id);

/// Which instance of a communicator an epoch has.
struct CommunicatorId {
  std::string name;
  InstanceHash instance = 0;
  std::optional<NcclUniqueId> id = {};  ///< none: all members have it
};

/// What one GPU says of a communicator that it is a member of.
struct CommunicatorOffer {
  std::string name;
  std::uint32_t members = 0;
  std::uint32_t own = 0;                      ///< which of them it is
  std::optional<InstanceHash> instance = {};  ///< that is there, and works
  std::optional<NcclUniqueId> id = {};        ///< of the first member, where none is there
};

}  // namespace gradsync::device
