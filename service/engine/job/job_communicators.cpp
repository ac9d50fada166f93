// What gradients travel by: connections of the daemon, or communicators of NCCL in a worker.

#include "engine/job/job.hpp"

#include <fmt/format.h>

#include <utility>
#include <variant>

namespace gradsync::engine {

/// Where gradients lie in memory of CPUs, a worker that has NCCL takes the place of the host's lane.
Result<void> Job::use_collectives(PreparedPlan& prepared) const {
  auto* const layout = std::get_if<device::LanePlan>(&prepared.layout);
  if (layout == nullptr || !layout->nodes.communicators) {
    return {};
  }
  if (prepared.cpu_collectives) {
    const Result<device::LaneId> lane = context_.lanes.of_cpu_collectives();
    if (!lane) {
      return lane.error();
    }
    prepared.shares.front().lane = *lane;
  } else if (const Result<void> may = context_.lanes.may_collect_on_gpus(); !may) {
    return may.error();
  }
  layout->nodes.communicators->job = number_;
  layout->nodes.communicators->fresh = fresh_communicators_;
  return {};
}

void Job::perform(ConnectEpoch& event) {
  if (active_ && active_->offered && !active_->offered->offers.empty()) {
    if (epochs_.loads() && event.epoch == epochs_.epoch()) {
      context_.lanes[active_->shares.front().lane].submit(device::ConnectNodes{
          active_->id, {}, std::move(event.communicators)});
    }
  } else if (active_ && !active_->linked.empty()) {
    perform(peers_->tell(LinksWanted{event.epoch, active_->linked}));
  } else {
    perform(peers_->tell(LocalsConnected{event.epoch}));
  }
}

/// The lane's message has its name and its ranks. Why it failed another node may know better, as of a connection.
Error Job::communicator_error(const device::Failed& report) const {
  return make_error(
      ErrorCode::NodeLost,
      fmt::format("what gradients of node '{}' travel by was lost: {}", peers_->node(), report.message),
      "the epoch forms again, with new communicators, when all nodes are back"
  );
}

}  // namespace gradsync::engine
