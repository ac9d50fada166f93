#pragma once
// The last reports of a job, and its counts. Reports are used again: where the history is full, or room was made for
// it, a step takes no memory. Thread: io, also for all that hold a report.

#include "base/clock.hpp"
#include "engine/report/report.hpp"

#include <boost/circular_buffer.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace gradsync::engine {

class History {
 public:
  /// The memory that is made ahead for a job. Long reports of many layers need more; then some are made in steps.
  static constexpr std::size_t kRoomBytes = std::size_t{4} << 20;

  explicit History(std::int64_t capacity) : reports_(static_cast<std::size_t>(capacity)) {}

  /// Makes the reports to come now, with the memory that this one has: those of a plan are alike.
  void make_room(const StepReport& like);

  /// Returns a report to be overwritten, which has no other holder.
  [[nodiscard]] std::shared_ptr<StepReport> next();

  /// The oldest goes where there are too many; its memory is kept for reuse unless it still has a holder.
  void committed(std::shared_ptr<StepReport> report, TimePoint now);

  void failed() { ++steps_failed_; }

  [[nodiscard]] std::vector<StepReport> last(std::int64_t count) const;

  [[nodiscard]] const StepReport* newest() const { return reports_.empty() ? nullptr : reports_.back().get(); }

  [[nodiscard]] std::int64_t last_step() const { return last_step_; }

  [[nodiscard]] std::optional<TimePoint> last_commit() const { return last_commit_; }

  [[nodiscard]] std::uint64_t steps_committed() const { return steps_committed_; }

  [[nodiscard]] std::uint64_t steps_failed() const { return steps_failed_; }

 private:
  boost::circular_buffer<std::shared_ptr<StepReport>> reports_;
  std::vector<std::shared_ptr<StepReport>> spare_;
  std::int64_t last_step_ = -1;
  std::optional<TimePoint> last_commit_;
  std::uint64_t steps_committed_ = 0;
  std::uint64_t steps_failed_ = 0;
};

}  // namespace gradsync::engine
