#pragma once
// Facts about all jobs, kept so that an event looks only at the jobs that it touched, however many there are: their
// deadlines in order, and how many compute beside each lane. Thread: io.
//
// Invariant: once an event is settled, the facts are those of every job.

#include "engine/job/job.hpp"
#include "engine/lanes.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace gradsync::engine {

class JobIndex {
 public:
  explicit JobIndex(Lanes& lanes) : lanes_(lanes) {}

  /// An event is about to change the job.
  void touch(Job& job);

  [[nodiscard]] const std::vector<Job*>& touched() const { return touched_; }

  /// The event is over: the facts of the touched jobs are taken anew.
  void settle();
  /// Before the end of the job.
  void forget(Job& job);

  [[nodiscard]] std::optional<TimePoint> next_deadline() const;
  /// The jobs that have a deadline of `now` or before.
  [[nodiscard]] std::vector<Job*> due(TimePoint now) const;

  /// Counts the touched jobs anew among those that compute beside each lane (`Lanes::Entry::computing`).
  void count_computing();

  /// How many jobs were looked at so far.
  [[nodiscard]] std::uint64_t looks() const { return looks_; }

 private:
  void count_anew(Job& job);
  void set_due(Job& job, const std::optional<TimePoint>& due);

  Lanes& lanes_;
  std::vector<Job*> touched_;
  JobFacts::Deadlines deadlines_;
  std::uint64_t looks_ = 0;
};

}  // namespace gradsync::engine
