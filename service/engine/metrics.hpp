#pragma once
// Counters of the engine, resolved once. Labels are bounded: never job, step or bucket.

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

namespace gradsync::engine {

struct EngineMetrics {
  explicit EngineMetrics(prometheus::Registry& registry);

  prometheus::Gauge& jobs;
  prometheus::Gauge& ranks_attached;
  prometheus::Gauge& arena_bytes;
  prometheus::Counter& steps_committed;
  prometheus::Counter& steps_failed;
  prometheus::Counter& steps_clipped;
  prometheus::Counter& buckets_reduced;
  prometheus::Counter& bucket_bytes;
  prometheus::Counter& nonfinite_values;
  prometheus::Counter& divergences;
  prometheus::Counter& ranks_lost;
  prometheus::Counter& reduce_seconds;
  prometheus::Histogram& step_seconds;
  prometheus::Histogram& step_wait_seconds;
};

}  // namespace gradsync::engine
