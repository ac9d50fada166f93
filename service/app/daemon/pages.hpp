#pragma once
// The GET pages: probes, metrics, status as JSON and as a page for people. Thread: io only.

#include "app/daemon/daemon_state.hpp"
#include "app/daemon/engine_clock.hpp"
#include "app/daemon/health.hpp"
#include "app/daemon/process_metrics.hpp"
#include "net/server.hpp"

#include <prometheus/registry.h>

namespace gradsync::app {

class Pages final : public net::PageHandler {
 public:
  Pages(
      const DaemonState& state,
      engine::Engine& engine,
      EngineClock& clock,
      rpc::Dispatcher& dispatcher,
      prometheus::Registry& registry,
      std::uint32_t own_uid
  )
      : state_(state),
        engine_(engine),
        clock_(clock),
        dispatcher_(dispatcher),
        registry_(registry),
        own_uid_(own_uid) {}

  [[nodiscard]] std::optional<net::HttpReply> on_get(std::string_view path, std::string_view query, bool trusted)
      override;

 private:
  [[nodiscard]] std::vector<HealthCheck> live_checks() const;
  [[nodiscard]] std::vector<HealthCheck> startup_checks() const;
  [[nodiscard]] std::vector<HealthCheck> ready_checks() const;
  [[nodiscard]] net::HttpReply healthz(const ProbeQuery& query) const;
  [[nodiscard]] net::HttpReply metrics();
  [[nodiscard]] net::HttpReply status(bool trusted) const;
  [[nodiscard]] net::HttpReply page(bool trusted) const;
  [[nodiscard]] std::vector<engine::JobStatus> jobs() const;

  const DaemonState& state_;
  engine::Engine& engine_;
  EngineClock& clock_;
  rpc::Dispatcher& dispatcher_;
  prometheus::Registry& registry_;
  std::uint32_t own_uid_;
  ProcessMetrics process_metrics_;

  static constexpr std::chrono::seconds kMetricsLast{1};
  net::HttpReply metrics_;
  TimePoint metrics_at_{};
};

}  // namespace gradsync::app
