#pragma once
// The plan of an epoch, and how far its lanes are with it.

#include "device/lane.hpp"
#include "engine/peers/peers.hpp"
#include "engine/peers/sums/comparison.hpp"
#include "engine/plan/prepared_plan.hpp"
#include "engine/report/communicators.hpp"
#include "engine/report/step_report.hpp"
#include "engine/step/join_cells.hpp"
#include "engine/step/step_record.hpp"
#include "plan/plan.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace gradsync::engine {

/// A plan that its lane has, or is about to have.
struct EpochPlan {
  device::PlanId id = 0;
  std::shared_ptr<const plan::Plan> plan;
  std::vector<LaneShare> shares;
  std::optional<JoinPlan> join;  ///< where there are several that cut the plan's buckets
  std::size_t loading = 0;       ///< lanes that have not loaded it yet
  std::size_t connecting = 0;    ///< lanes whose communicators are not built yet
  std::vector<std::uint64_t> buffers;
  ReportConstants constants;
  std::shared_ptr<StepRecord> record;                 ///< none where there is no encoder
  std::shared_ptr<const Comparison> comparison = {};  ///< none on a node that is alone
  Communicators communicators = {};                   ///< none on a node that is alone
  std::vector<std::vector<std::string>> needed = {};  ///< by share: the names of its communicators; none: sockets
  std::vector<device::LaneId> offering = {};          ///< lanes that have loaded it, and offered communicators
  std::vector<NodeNumber> linked = {};                ///< those that its sums travel to or from; data path arena only
  std::optional<device::LoadedCommunicators> offered = {};  ///< by the lanes, where sums travel by communicators
  device::HashSums sums = device::HashSums::In;  ///< whether copies on other nodes agreed in each bit until now
  std::optional<AttemptRefused> refused = {};    ///< the last attempt that other nodes have failed

  /// Which of its shares the lane has; it has one.
  [[nodiscard]] std::size_t share_of(device::LaneId lane) const;
};

/// By share: the names of the communicators that its lane needs.
[[nodiscard]] std::vector<std::vector<std::string>> needed_communicators(const PreparedPlan& prepared);

}  // namespace gradsync::engine
