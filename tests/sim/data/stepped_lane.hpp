#pragma once
// The host lane without its thread: its queue and its passes, one piece of work when the world says so.

#include "device/host/host_device.hpp"
#include "device/lane.hpp"
#include "device/queue/lane_queue.hpp"
#include "sim/data/stepped_wire.hpp"

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace gradsync::sim {

class SteppedLane final : public device::Lane {
 public:
  /// Its wires are of this daemon.
  explicit SteppedLane(SteppedWire::Host& host)
      : host_(host),
        queue_(
            [](const std::atomic<bool>& cancel) { return std::make_unique<device::HostDevice>(1, cancel); },
            [this](device::LaneReport report) { reports_.push_back(std::move(report)); },
            [this](auto connections, auto wake) { return make_wire(std::move(connections), std::move(wake)); },
            device::LaneThread::Caller
        ) {}

  void submit(device::LaneCommand command) override {
    if (const auto* load = std::get_if<device::LoadPlan>(&command)) {
      most_sent_[load->plan] = most_sent(load->layout);
    } else if (const auto* unload = std::get_if<device::UnloadPlan>(&command)) {
      most_sent_.erase(unload->plan);
    } else if (const auto* connect = std::get_if<device::ConnectNodes>(&command)) {
      connecting_[connect->connections.front().partials.get()] = most_sent_[connect->plan];
    }
    queue_.submit(std::move(command));
  }

  [[nodiscard]] bool has_work() const { return queue_.has_work(); }

  /// What is reported of the next piece of work.
  [[nodiscard]] std::vector<device::LaneReport> work() {
    queue_.work();
    return std::exchange(reports_, {});
  }

 private:
  [[nodiscard]] std::unique_ptr<device::Wire> make_wire(
      std::vector<device::NodeConnection> connections, std::function<void()> wake
  ) {
    const int first = connections.front().partials.get();
    const std::uint64_t most = connecting_[first];
    return std::make_unique<SteppedWire>(host_, std::move(connections), std::move(wake), most);
  }

  SteppedWire::Host& host_;
  std::vector<device::LaneReport> reports_;
  std::map<device::PlanId, std::uint64_t> most_sent_;
  std::map<int, std::uint64_t> connecting_;  ///< by descriptor of the first connection
  device::LaneQueue queue_;                  ///< last: it uses the others
};

}  // namespace gradsync::sim
