#include "rpc/metrics.hpp"

#include "rpc/handlers/method.hpp"

namespace gradsync::rpc {

namespace {

const char* label_of(std::size_t method) { return method < methods().size() ? methods()[method].name : "unknown"; }

}  // namespace

RpcMetrics::RpcMetrics(prometheus::Registry& registry)
    : sessions(prometheus::BuildGauge()
                   .Name("gradsync_rpc_sessions")
                   .Help("Connections that were initialized")
                   .Register(registry)
                   .Add({})),
      subscriptions(prometheus::BuildGauge()
                        .Name("gradsync_rpc_subscriptions")
                        .Help("Live event subscriptions")
                        .Register(registry)
                        .Add({})),
      events_dropped(prometheus::BuildCounter()
                         .Name("gradsync_rpc_events_dropped_total")
                         .Help("Events that a slow subscriber did not get")
                         .Register(registry)
                         .Add({})),
      requests_(prometheus::BuildCounter()
                    .Name("gradsync_rpc_requests_total")
                    .Help("Requests and notifications by method and outcome (ok or the error's kind)")
                    .Register(registry)),
      counters_(methods().size() + 1) {
  auto& durations = prometheus::BuildHistogram()
                        .Name("gradsync_rpc_duration_seconds")
                        .Help("From the request to its reply, waiting for other ranks included")
                        .Register(registry);
  const prometheus::Histogram::BucketBoundaries bounds{1e-4, 1e-3, 1e-2, 0.1, 1, 10, 100, 1000};
  for (std::size_t method = 0; method < methods().size(); ++method) {
    durations_.push_back(&durations.Add({{"method", label_of(method)}}, bounds));
  }
}

void RpcMetrics::request_done(std::size_t method, const Error* error, double duration_s) {
  const std::size_t outcome = error != nullptr ? 1 + static_cast<std::size_t>(error->code) : 0;
  auto& counters = counters_[method];
  if (counters.size() <= outcome) {
    counters.resize(outcome + 1, nullptr);
  }
  if (counters[outcome] == nullptr) {
    const char* kind = error != nullptr ? kind_of(error->code) : "ok";
    counters[outcome] = &requests_.Add({{"method", label_of(method)}, {"outcome", kind}});
  }
  counters[outcome]->Increment();
  if (method < durations_.size()) {
    durations_[method]->Observe(duration_s);
  }
}

}  // namespace gradsync::rpc
