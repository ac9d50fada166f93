#pragma once
// The real host lane for single-threaded tests: commands run on its threads, reports wait here until the test pumps
// them. Lanes of several nodes are pumped in turn, with the movements of a WireNetwork in between.

#include "device/host/host_lane.hpp"

#include <deque>
#include <mutex>
#include <optional>
#include <utility>

namespace gradsync::fakes {

class InlineHostLane : public device::Lane {
 public:
  explicit InlineHostLane(device::MakeWire make_wire = device::make_socket_wire) {
    lane_.emplace(device::HostLaneOptions{2, std::move(make_wire)}, [this](device::LaneReport report) {
      const std::lock_guard lock(mutex_);
      reports_.push_back(std::move(report));
    });
  }

  void submit(device::LaneCommand command) override {
    if (const std::optional<device::Failed> failed = failing ? failure_of(command) : std::nullopt) {
      const std::lock_guard lock(mutex_);
      reports_.push_back(*failed);
      return;
    }
    lane_->submit(std::move(command));
  }

  /// Waits for the next report; false when none can come before another command does, or a message of another node.
  [[nodiscard]] bool wait_report(device::LaneReport& report) {
    lane_->wait_until_idle();
    const std::lock_guard lock(mutex_);
    if (reports_.empty()) {
      return false;
    }
    report = std::move(reports_.front());
    reports_.pop_front();
    return true;
  }

  bool failing = false;  ///< plans are not taken and buckets not reduced, as when the device breaks

 private:
  static std::optional<device::Failed> failure_of(const device::LaneCommand& command) {
    device::Failed report;
    report.message = "scripted failure";
    if (const auto* load = std::get_if<device::LoadPlan>(&command)) {
      report.plan = load->plan;
      return report;
    }
    if (const auto* load = std::get_if<device::LoadStats>(&command)) {
      report.plan = load->plan;
      return report;
    }
    if (const auto* reduce = std::get_if<device::ReduceBucket>(&command)) {
      report.plan = reduce->plan;
      report.tag = reduce->tag;
      return report;
    }
    return std::nullopt;
  }

  std::mutex mutex_;
  std::deque<device::LaneReport> reports_;
  std::optional<device::HostLane> lane_;  ///< last: its thread adds reports
};

}  // namespace gradsync::fakes
