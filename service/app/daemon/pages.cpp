#include "app/daemon/pages.hpp"

#include "app/daemon/status_page.hpp"
#include "base/version.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <prometheus/text_serializer.h>

#include <sys/stat.h>

#include <algorithm>

namespace gradsync::app {

std::optional<net::HttpReply> Pages::on_get(std::string_view path, std::string_view query, bool trusted) {
  const ProbeQuery probe = parse_probe_query(query);
  if (path == "/livez") {
    return probe_reply("livez", live_checks(), probe);
  }
  if (path == "/readyz") {
    return probe_reply("readyz", ready_checks(), probe);
  }
  if (path == "/startupz") {
    return probe_reply("startupz", startup_checks(), probe);
  }
  if (path == "/healthz") {
    return healthz(probe);
  }
  if (path == "/metrics") {
    if (trusted) {
      metrics_at_ = {};  // the operator sees this moment
    }
    return metrics();
  }
  if (path == "/status") {
    return status(trusted);
  }
  if (path == "/") {
    return page(trusted);
  }
  return std::nullopt;
}

/// The io thread answers this itself, so an answer proves that its loop turns. Ranks and lanes have no say.
std::vector<HealthCheck> Pages::live_checks() const { return {{"io-loop", ""}}; }

std::vector<HealthCheck> Pages::startup_checks() const {
  return {{"configuration", ""}, {"socket", state_.serving ? "" : "the listeners are not up yet"}};
}

std::vector<HealthCheck> Pages::ready_checks() const {
  struct stat found {};

  const bool reachable = ::lstat(state_.socket_path.c_str(), &found) == 0;
  return {
      {"accepting", state_.serving ? "" : "the listeners are not up"},
      {"socket-file", reachable ? "" : fmt::format("'{}' is gone", state_.socket_path)},
      {"not-draining", state_.draining ? "the daemon was told to stop" : ""},
  };
}

std::vector<engine::JobStatus> Pages::jobs() const {
  return clock_.turn("a page", [this] { return engine_.status(std::nullopt); });
}

net::HttpReply Pages::healthz(const ProbeQuery& query) const {
  std::vector<HealthCheck> checks = live_checks();
  for (HealthCheck& check : startup_checks()) {
    checks.push_back(std::move(check));
  }
  net::HttpReply reply = probe_reply("healthz", checks, query);
  if (query.verbose) {
    return reply;
  }
  double youngest = -1;
  const std::vector<engine::JobStatus> all = jobs();
  for (const engine::JobStatus& job : all) {
    if (job.last_commit_age_s >= 0 && (youngest < 0 || job.last_commit_age_s < youngest)) {
      youngest = job.last_commit_age_s;
    }
  }
  nlohmann::ordered_json body{
      {"version", kVersion}, {"incarnation", state_.incarnation}, {"state", state_.text()}, {"jobs", all.size()}};
  body["last_commit_age_s"] = youngest < 0 ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(youngest);
  reply.content_type = "application/json";
  reply.body = body.dump() + "\n";
  return reply;
}

/// Whoever asks: one text a second for all of them.
net::HttpReply Pages::metrics() {
  const TimePoint now = std::chrono::steady_clock::now();
  if (now - metrics_at_ < kMetricsLast) {
    return metrics_;
  }
  std::vector<prometheus::MetricFamily> families = registry_.Collect();
  for (prometheus::MetricFamily& family : process_metrics_.Collect()) {
    families.push_back(std::move(family));
  }
  metrics_ = {200, "text/plain; version=0.0.4; charset=utf-8", prometheus::TextSerializer{}.Serialize(families)};
  metrics_at_ = now;
  return metrics_;
}

net::HttpReply Pages::status(bool trusted) const {
  if (!trusted) {
    const nlohmann::ordered_json body{
        {"version", kVersion},
        {"incarnation", state_.incarnation},
        {"state", state_.text()},
        {"hint", "jobs are shown over the unix socket: gradsyncd status"}};
    return {200, "application/json", body.dump() + "\n"};
  }
  const rpc::Peer operator_peer{.local = true, .privileged = true, .uid = own_uid_, .pid = 0};
  const rpc::PostReply reply = clock_.turn("a page", [&] {
    return dispatcher_.on_post(operator_peer, R"({"jsonrpc":"2.0","id":1,"method":"status.get","params":{}})");
  });
  const nlohmann::ordered_json envelope = nlohmann::ordered_json::parse(reply.body, nullptr, false);
  if (!envelope.is_object() || !envelope.contains("result")) {
    return {500, "application/json", reply.body};
  }
  return {200, "application/json", envelope["result"].dump() + "\n"};
}

net::HttpReply Pages::page(bool trusted) const {
  StatusPage content;
  content.version = kVersion;
  content.state = state_.text();
  content.incarnation = state_.incarnation;
  content.uptime_s = seconds(std::chrono::steady_clock::now() - state_.started_at);
  if (trusted) {
    content.jobs = jobs();
  }
  return {200, "text/html; charset=utf-8", render_status_page(content)};
}

}  // namespace gradsync::app
