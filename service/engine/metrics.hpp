#pragma once
// Counters of the engine, resolved once. Labels are bounded: never step or bucket; a job only in its opt-in gauges.

#include "engine/report/job_gauges.hpp"
#include "plan/clip/clip_rule.hpp"
#include "policy/health.hpp"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace gradsync::engine {

enum class PolicyRole : std::uint8_t { Decides, Watches };

/// The actions of policies, or those that they would have taken, over the steps that are done: by role and kind, over
/// all jobs and groups.
class PolicyMetrics {
 public:
  explicit PolicyMetrics(prometheus::Registry& registry);

  void sign_began(policy::Sign sign) { signs_[static_cast<std::size_t>(sign)]->Increment(); }

  void count(PolicyRole role, const plan::PolicyOptions& policy, const plan::ClipOutcome& outcome);

 private:
  struct Counters {
    prometheus::Counter* clipped;
    prometheus::Counter* skipped;
    prometheus::Counter* raised;
  };

  std::vector<Counters> counters_;  ///< by role, then by kind
  std::array<prometheus::Counter*, policy::kSigns.size()> signs_{};
};

struct EngineMetrics {
  /// `most_job_gauges` jobs show their last norm.
  explicit EngineMetrics(prometheus::Registry& registry, std::int64_t most_job_gauges = 0);

  prometheus::Gauge& jobs;
  prometheus::Gauge& ranks_attached;
  prometheus::Gauge& arena_bytes;
  prometheus::Counter& steps_committed;
  prometheus::Counter& steps_failed;
  prometheus::Counter& steps_clipped;
  PolicyMetrics policies;
  prometheus::Counter& buckets_reduced;
  prometheus::Counter& bucket_bytes;
  prometheus::Counter& wire_bytes;
  prometheus::Counter& collectives;
  prometheus::Counter& nonfinite_values;
  prometheus::Counter& divergences;
  prometheus::Counter& ranks_lost;
  prometheus::Counter& reduce_seconds;
  prometheus::Histogram& step_seconds;
  prometheus::Histogram& step_wait_seconds;
  JobGauges job_gauges;
};

}  // namespace gradsync::engine
