#pragma once
// Counters of the sockets, resolved once. Labels are bounded: the reason of a refusal, never the peer.

#include "net/limits/io_watch.hpp"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>

namespace gradsync::net {

struct NetMetrics {
  explicit NetMetrics(prometheus::Registry& registry);

  prometheus::Gauge& connections;
  prometheus::Counter& accepted;
  prometheus::Counter& refused_uid;
  prometheus::Counter& refused_token;
  prometheus::Counter& refused_limit;
  prometheus::Counter& slow_readers;
  prometheus::Counter& accept_pauses;
  prometheus::Counter& received_bytes;
  prometheus::Counter& sent_bytes;
  prometheus::Counter& read_pauses;
  IoWatch io_watch;
};

}  // namespace gradsync::net
