#pragma once
// The lanes that engines of several nodes are tested with.

#include "device/lane.hpp"
#include "fakes/inline_host_lane.hpp"
#include "fakes/wire_network.hpp"

#include <functional>
#include <memory>
#include <set>
#include <utility>
#include <variant>

namespace gradsync::engine {

/// A lane that is asked for its reports.
class NodeLane : public device::Lane {
 public:
  /// False: nothing is reported before something else happens.
  [[nodiscard]] virtual bool wait_report(device::LaneReport& report) = 0;

  /// The next bucket, or the next plan, is not taken.
  virtual void fail_next() = 0;

  /// The connections between this node and another one are closed.
  virtual void break_wire(plan::TransferNode own, plan::TransferNode peer) = 0;

  /// Some plan has connections.
  [[nodiscard]] virtual bool connected() const = 0;
};

/// The connections are those of the network.
using MakeNodeLane = std::function<std::unique_ptr<NodeLane>(fakes::WireNetwork& network)>;

/// That of the daemon.
class HostNodeLane final : public NodeLane {
 public:
  explicit HostNodeLane(fakes::WireNetwork& network) : network_(network), lane_(network.maker()) {}

  void submit(device::LaneCommand command) override {
    if (const auto* connect = std::get_if<device::ConnectNodes>(&command)) {
      connected_.insert(connect->plan);
    } else if (const auto* unload = std::get_if<device::UnloadPlan>(&command)) {
      connected_.erase(unload->plan);
    }
    const bool may_fail =
        std::holds_alternative<device::LoadPlan>(command) || std::holds_alternative<device::ReduceBucket>(command);
    lane_.failing = may_fail && std::exchange(fails_, false);
    lane_.submit(std::move(command));
  }

  [[nodiscard]] bool wait_report(device::LaneReport& report) override { return lane_.wait_report(report); }

  void fail_next() override { fails_ = true; }

  void break_wire(plan::TransferNode own, plan::TransferNode peer) override { network_.cut(own, peer); }

  [[nodiscard]] bool connected() const override { return !connected_.empty(); }

 private:
  fakes::WireNetwork& network_;
  bool fails_ = false;
  std::set<device::PlanId> connected_;
  fakes::InlineHostLane lane_;
};

inline std::unique_ptr<NodeLane> host_node_lane(fakes::WireNetwork& network) {
  return std::make_unique<HostNodeLane>(network);
}

}  // namespace gradsync::engine
