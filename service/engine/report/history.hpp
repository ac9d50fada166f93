#pragma once
// The last reports of a job, and its counts. How many are kept depends on their memory, which all jobs share.
// Thread: io, also for all that hold a report.

#include "base/clock.hpp"
#include "base/fair_budget.hpp"
#include "engine/report/report.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

namespace gradsync::engine {

class History {
 public:
  static constexpr std::size_t kMostBytes = std::size_t{4} << 20;  ///< of a job

  /// The memory counts as that of `holder`; `memory` has to outlive this.
  History(std::int64_t capacity, FairBudget& memory, const Holder& holder);
  ~History();
  History(const History&) = delete;
  History& operator=(const History&) = delete;

  /// Returns a report to be overwritten, which has no other holder.
  [[nodiscard]] std::shared_ptr<StepReport> next();

  /// The oldest go where there are too many, where they take more than `kMostBytes`, or where the holder gets no more
  /// memory. The newest always stays.
  void committed(std::shared_ptr<StepReport> report, TimePoint now);

  void failed() { ++steps_failed_; }

  /// Oldest first.
  [[nodiscard]] std::vector<std::shared_ptr<const StepReport>> last(std::int64_t count) const;

  [[nodiscard]] const StepReport* newest() const { return reports_.empty() ? nullptr : reports_.back().report.get(); }

  [[nodiscard]] std::int64_t last_step() const { return last_step_; }

  [[nodiscard]] std::optional<TimePoint> last_commit() const { return last_commit_; }

  [[nodiscard]] std::uint64_t steps_committed() const { return steps_committed_; }

  [[nodiscard]] std::uint64_t steps_failed() const { return steps_failed_; }

 private:
  struct Kept {
    std::shared_ptr<StepReport> report;
    std::size_t bytes = 0;
  };

  void forget_oldest();

  std::size_t capacity_;
  FairBudget& memory_;
  Holder holder_;
  std::deque<Kept> reports_;
  std::size_t bytes_ = 0;
  std::shared_ptr<StepReport> spare_;  ///< the memory of one that is not kept any more
  std::int64_t last_step_ = -1;
  std::optional<TimePoint> last_commit_;
  std::uint64_t steps_committed_ = 0;
  std::uint64_t steps_failed_ = 0;
};

}  // namespace gradsync::engine
