// What gradients travel by: connections of the daemon, or communicators of NCCL in a worker.

#include "engine/job/job.hpp"
#include "plan/transfer/communicator_name.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>
#include <variant>

namespace gradsync::engine {

namespace {

std::vector<std::string> communicator_names(const device::LaneNodes& nodes) {
  std::vector<std::string> names;
  if (nodes.communicators) {
    for (const device::LaneCommunicator& one : nodes.communicators->needed) {
      names.push_back(plan::communicator_name(one.spec.axes, one.spec.ranks));
    }
  }
  return names;
}

}  // namespace

std::vector<std::vector<std::string>> needed_communicators(const PreparedPlan& prepared) {
  std::vector<std::vector<std::string>> by_share;
  if (const auto* const layout = std::get_if<device::LanePlan>(&prepared.layout)) {
    by_share.push_back(communicator_names(layout->nodes));
    std::ranges::transform(prepared.other_sites, std::back_inserter(by_share), communicator_names);
  }
  return by_share;
}

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
  } else if (std::ranges::any_of(needed_communicators(prepared), std::not_fn(&std::vector<std::string>::empty))) {
    if (const Result<void> may = context_.lanes.may_collect_on_gpus(); !may) {
      return may.error();
    }
  }
  const auto fill = [this](device::LaneNodes& nodes) {
    nodes.communicators->job = number_;
    nodes.communicators->fresh = fresh_communicators_;
  };
  fill(layout->nodes);
  std::ranges::for_each(prepared.other_sites, fill);
  return {};
}

void Job::perform(ConnectEpoch& event) {
  if (active_ && active_->offered) {
    if (epochs_.loads() && event.epoch == epochs_.epoch()) {
      connect(event.communicators);
    }
  } else if (active_ && !active_->linked.empty()) {
    perform(peers_->tell(LinksWanted{event.epoch, active_->linked}));
  } else {
    perform(peers_->tell(LocalsConnected{event.epoch}));
  }
}

/// Each lane gets the ids of its own.
void Job::connect(const std::vector<device::CommunicatorId>& communicators) {
  active_->connecting = 0;
  for (std::size_t share = 0; share < active_->shares.size(); ++share) {
    device::ConnectNodes command{active_->id, {}};
    std::ranges::copy_if(communicators, std::back_inserter(command.communicators), [&](const auto& id) {
      return std::ranges::count(active_->needed[share], id.name) != 0;
    });
    if (!active_->needed[share].empty()) {
      ++active_->connecting;
      context_.lanes[active_->shares[share].lane].submit(std::move(command));
    }
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
