#pragma once
// The last reports of a job, and its counts.

#include "base/clock.hpp"
#include "engine/report.hpp"

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

namespace gradsync::engine {

class History {
 public:
  explicit History(std::int64_t capacity) : capacity_(static_cast<std::size_t>(capacity)) {}

  void committed(std::shared_ptr<const StepReport> report, TimePoint now) {
    last_step_ = report->step;
    last_commit_ = now;
    ++steps_committed_;
    reports_.push_back(std::move(report));
    if (reports_.size() > capacity_) {
      reports_.pop_front();
    }
  }

  void failed() { ++steps_failed_; }

  [[nodiscard]] std::vector<StepReport> last(std::int64_t count) const {
    const auto shown = std::min(static_cast<std::size_t>(std::max<std::int64_t>(count, 0)), reports_.size());
    std::vector<StepReport> reports;
    for (auto it = reports_.end() - static_cast<std::ptrdiff_t>(shown); it != reports_.end(); ++it) {
      reports.push_back(**it);
    }
    return reports;
  }

  [[nodiscard]] const StepReport* newest() const { return reports_.empty() ? nullptr : reports_.back().get(); }

  [[nodiscard]] std::int64_t last_step() const { return last_step_; }

  [[nodiscard]] std::optional<TimePoint> last_commit() const { return last_commit_; }

  [[nodiscard]] std::uint64_t steps_committed() const { return steps_committed_; }

  [[nodiscard]] std::uint64_t steps_failed() const { return steps_failed_; }

 private:
  std::size_t capacity_;
  std::deque<std::shared_ptr<const StepReport>> reports_;
  std::int64_t last_step_ = -1;
  std::optional<TimePoint> last_commit_;
  std::uint64_t steps_committed_ = 0;
  std::uint64_t steps_failed_ = 0;
};

}  // namespace gradsync::engine
