#pragma once
// The executor of the host lane without its thread: a command waits until its time has come, and is then executed by
// the passes of the daemon. What an Abort stops is what it stops in a lane that has not begun it.

#include "device/about.hpp"
#include "device/device_error.hpp"
#include "device/failure.hpp"
#include "device/host/host_device.hpp"
#include "device/lane.hpp"
#include "device/queue/lane_executor.hpp"

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <optional>
#include <utility>

namespace gradsync::sim {

class QueuedLane final : public device::Lane {
 public:
  void submit(device::LaneCommand command) override {
    if (std::holds_alternative<device::SetWidth>(command)) {
      return;
    }
    if (const auto* abort = std::get_if<device::Abort>(&command)) {
      device::Tag& tag = aborted_.try_emplace(abort->plan, abort->tag).first->second;
      tag = std::max(tag, abort->tag);
    }
    commands_.push_back(std::move(command));
  }

  [[nodiscard]] bool empty() const { return commands_.empty(); }

  /// Executes the command that waits longest.
  [[nodiscard]] device::LaneReport work() {
    device::LaneCommand command = std::move(commands_.front());
    commands_.pop_front();
    return std::visit([this](auto& given) { return perform(given); }, command);
  }

 private:
  template <typename Command>
  device::LaneReport perform(Command& command) {
    device::Failed failed = device::about(device::LaneCommand(std::in_place_type<Command>));
    if constexpr (requires { command.plan; }) {
      failed.plan = command.plan;
    }
    if constexpr (requires { command.buffer; }) {
      failed.buffer = command.buffer;
    }
    if constexpr (requires { command.tag; }) {
      failed.tag = command.tag;
      const auto found = aborted_.find(command.plan);
      if (found != aborted_.end() && command.tag <= found->second) {
        failed.aborted = true;
        failed.message = "aborted";
      }
    }
    if constexpr (std::is_same_v<Command, device::Abort>) {
      return device::Aborted{command.plan, command.tag};
    } else if constexpr (std::is_same_v<Command, device::SetWidth>) {
      return failed;  // it is never queued
    } else {
      return failed.aborted ? failed : execute(command, std::move(failed));
    }
  }

  template <typename Command>
  device::LaneReport execute(Command& command, device::Failed failed) {
    try {
      std::optional<device::LaneReport> report =
          executor_(command);  // none for gradients over nodes: no world has them
      if constexpr (std::is_same_v<Command, device::UnloadPlan>) {
        aborted_.erase(command.plan);
      }
      return std::move(report.value());
    } catch (const device::DeviceError&) {
      return device::failure_by_exception(std::move(failed));
    }
  }

  std::deque<device::LaneCommand> commands_;
  std::map<device::PlanId, device::Tag> aborted_;
  std::atomic<bool> cancel_{false};
  device::HostDevice device_{1, cancel_};
  device::LaneExecutor executor_{device_, cancel_, {}, {}};
};

}  // namespace gradsync::sim
