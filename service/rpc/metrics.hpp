#pragma once
// Counters of the rpc layer. Labels are bounded: method is a name of the table or "unknown", outcome is "ok" or an
// error kind. The families are resolved once; a counter of a pair is made when the pair first occurs.

#include "base/error.hpp"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <string>
#include <unordered_map>
#include <vector>

namespace gradsync::rpc {

struct RpcMetrics {
  explicit RpcMetrics(prometheus::Registry& registry);

  /// `method`: index in the table, or its size for "unknown". No `error`: ok.
  void request_done(std::size_t method, const Error* error, double duration_s);

  prometheus::Gauge& sessions;       ///< connections that were initialized
  prometheus::Gauge& subscriptions;  ///< live event subscriptions
  prometheus::Counter& events_dropped;

 private:
  prometheus::Family<prometheus::Counter>& requests_;
  std::vector<prometheus::Histogram*> durations_;
  std::vector<std::vector<prometheus::Counter*>> counters_;  ///< [method][0: ok, else 1 + code]
};

}  // namespace gradsync::rpc
