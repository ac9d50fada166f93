#pragma once
// The last norm and threshold of each of some jobs, for a plot; opt-in, because a job is a label that users choose. Its
// values are bounded: so many jobs at once, and none that is gone. One owner, one thread.

#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>

namespace gradsync::engine {

class JobGauges;

/// The gauges of one job, which end with it.
class JobGauge {
 public:
  ~JobGauge();
  JobGauge(const JobGauge&) = delete;
  JobGauge& operator=(const JobGauge&) = delete;

  /// Shows a step that is done. NaN and infinity are shown as such; an infinite threshold is none.
  void set(double norm, double threshold);

 private:
  friend class JobGauges;
  using Key = std::pair<std::uint32_t, std::string>;  ///< uid and name

  JobGauge(JobGauges& all, Key key);

  JobGauges& all_;
  Key key_;
  prometheus::Gauge& norm_;
  prometheus::Gauge& threshold_;
};

class JobGauges {
 public:
  /// At most `most` jobs have gauges; 0: none, and nothing is registered.
  JobGauges(prometheus::Registry& registry, std::int64_t most);

  /// The gauges of a new job; none where `most` others have them, or one of the same name and uid has not ended yet.
  [[nodiscard]] std::unique_ptr<JobGauge> of(std::uint32_t uid, const std::string& job);

 private:
  friend class JobGauge;

  std::size_t most_;
  std::set<JobGauge::Key> shown_;
  prometheus::Family<prometheus::Gauge>* norms_ = nullptr;
  prometheus::Family<prometheus::Gauge>* thresholds_ = nullptr;
};

}  // namespace gradsync::engine
