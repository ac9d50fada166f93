#pragma once
// The GET pages: probes, metrics, status and steps as JSON, and the page for people, with scripts for browsers and
// without for all others. Thread: io only.

#include "app/daemon/daemon_state.hpp"
#include "app/daemon/engine_clock.hpp"
#include "app/daemon/pages/health.hpp"
#include "app/daemon/pages/process_metrics.hpp"
#include "app/page/recent_steps.hpp"
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

  [[nodiscard]] net::PageAccess access(const net::PageRequest& request) const override;
  [[nodiscard]] std::optional<net::HttpReply> on_get(const net::PageRequest& request) override;

 private:
  struct Row;
  [[nodiscard]] static const Row* row_of(const net::PageRequest& request);

  [[nodiscard]] net::HttpReply livez(const net::PageRequest& request);
  [[nodiscard]] net::HttpReply readyz(const net::PageRequest& request);
  [[nodiscard]] net::HttpReply startupz(const net::PageRequest& request);
  [[nodiscard]] net::HttpReply healthz(const net::PageRequest& request);
  [[nodiscard]] net::HttpReply metrics(const net::PageRequest& request);
  [[nodiscard]] net::HttpReply status(const net::PageRequest& request);
  [[nodiscard]] net::HttpReply steps(const net::PageRequest& request);
  [[nodiscard]] net::HttpReply text_page(const net::PageRequest& request);

  [[nodiscard]] std::vector<HealthCheck> live_checks() const;
  [[nodiscard]] std::vector<HealthCheck> startup_checks() const;
  [[nodiscard]] std::vector<HealthCheck> ready_checks() const;
  [[nodiscard]] Result<rpc::StepsAnswer> steps_of(const StepsQuery& job) const;
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
