#pragma once
// The real host lane for single-threaded tests: commands run on its threads, reports wait here until the test pumps
// them.

#include "device/host_lane.hpp"

#include <condition_variable>
#include <deque>
#include <mutex>

namespace gradsync::fakes {

class InlineHostLane : public device::Lane {
 public:
  void submit(device::LaneCommand command) override {
    if (!std::holds_alternative<device::SetWidth>(command)) {
      const std::lock_guard lock(mutex_);
      ++outstanding_;
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

 private:
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
