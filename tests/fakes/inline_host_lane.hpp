#pragma once
// The real host lane for single-threaded tests: commands run on its threads, reports wait here until the test pumps
// them.

#include "device/host/host_lane.hpp"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>

namespace gradsync::fakes {

class InlineHostLane : public device::Lane {
 public:
  void submit(device::LaneCommand command) override {
    if (!std::holds_alternative<device::SetWidth>(command)) {
      const std::lock_guard lock(mutex_);
      ++outstanding_;
    }
    if (const std::optional<device::Failed> failed = failing ? failure_of(command) : std::nullopt) {
      const std::lock_guard lock(mutex_);
      reports_.push_back(*failed);
      return;
    }
    lane_.submit(std::move(command));
  }

  /// Waits for the next report; false when no command is outstanding.
  [[nodiscard]] bool wait_report(device::LaneReport& report) {
    std::unique_lock lock(mutex_);
    if (outstanding_ == 0) {
      return false;
    }
    arrived_.wait(lock, [this] { return !reports_.empty(); });
    report = std::move(reports_.front());
    reports_.pop_front();
    --outstanding_;
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
  std::condition_variable arrived_;
  std::deque<device::LaneReport> reports_;
  int outstanding_ = 0;
  device::HostLane lane_{device::HostLaneOptions{2}, [this](device::LaneReport report) {
                           const std::lock_guard lock(mutex_);
                           reports_.push_back(std::move(report));
                           arrived_.notify_one();
                         }};
};

}  // namespace gradsync::fakes
