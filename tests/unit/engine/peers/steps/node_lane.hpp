#pragma once
// The lane of one node of several, with the faults that tests ask for.

#include "device/lane.hpp"
#include "fakes/inline_host_lane.hpp"
#include "fakes/wire_network.hpp"

#include <set>
#include <utility>
#include <variant>

namespace gradsync::engine {

/// That of the daemon, over connections of the network.
class NodeLane final : public device::Lane {
 public:
  explicit NodeLane(fakes::WireNetwork& network) : lane_(network.maker()) {}

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

  /// False: nothing is reported before something else happens.
  [[nodiscard]] bool wait_report(device::LaneReport& report) { return lane_.wait_report(report); }

  /// The next bucket, or the next plan, is not taken.
  void fail_next() { fails_ = true; }

  /// Some plan was given connections, and has not been unloaded.
  [[nodiscard]] bool connected() const { return !connected_.empty(); }

 private:
  bool fails_ = false;
  std::set<device::PlanId> connected_;
  fakes::InlineHostLane lane_;
};

}  // namespace gradsync::engine
