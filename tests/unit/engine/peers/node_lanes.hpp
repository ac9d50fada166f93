#pragma once
// The lanes that engines of several nodes are tested with.

#include "device/lane.hpp"
#include "fakes/inline_host_lane.hpp"

#include <functional>
#include <memory>
#include <utility>

namespace gradsync::engine {

/// A lane that is asked for its reports.
class NodeLane : public device::Lane {
 public:
  /// False: nothing is reported before something else happens.
  [[nodiscard]] virtual bool wait_report(device::LaneReport& report) = 0;
};

using MakeNodeLane = std::function<std::unique_ptr<NodeLane>()>;

/// That of the daemon. It waits for a report while a command is outstanding.
class HostNodeLane final : public NodeLane {
 public:
  void submit(device::LaneCommand command) override { lane_.submit(std::move(command)); }

  [[nodiscard]] bool wait_report(device::LaneReport& report) override { return lane_.wait_report(report); }

 private:
  fakes::InlineHostLane lane_;
};

inline std::unique_ptr<NodeLane> host_node_lane() { return std::make_unique<HostNodeLane>(); }

}  // namespace gradsync::engine
