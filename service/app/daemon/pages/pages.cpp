#include "app/daemon/pages/pages.hpp"

#include "app/daemon/pages/status_page.hpp"
#include "app/page/page_files.hpp"
#include "base/error_page.hpp"
#include "base/version.hpp"
#include "rpc/error_codes.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <prometheus/text_serializer.h>

#include <sys/stat.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace gradsync::app {

namespace {

net::HttpReply error_reply(const Error& error) {
  const rpc::ErrorRow& row = rpc::row_of(error.code);
  std::string text = fmt::format("{}: {}; {}\n", kind_of(error.code), error.message, with_page(error.hint, error.code));
  return {row.http, "text/plain; charset=utf-8", std::move(text)};
}

}  // namespace

/// A line of the table of pages.
struct Pages::Row {
  std::string_view path;
  net::PageAccess access;
  net::HttpReply (Pages::*answer)(const net::PageRequest& request);
};

/// Files of the page for browsers are not in the table; "/" is one of them for a browser only.
const Pages::Row* Pages::row_of(const net::PageRequest& request) {
  using enum net::PageAccess;
  static constexpr Row kRows[] = {
      {"/livez", Daemon, &Pages::livez},
      {"/readyz", Daemon, &Pages::readyz},
      {"/startupz", Daemon, &Pages::startupz},
      {"/healthz", Daemon, &Pages::healthz},
      {"/metrics", Daemon, &Pages::metrics},
      {"/status", Jobs, &Pages::status},
      {"/steps", Jobs, &Pages::steps},
      {"/text", Jobs, &Pages::text_page},
      {"/", Jobs, &Pages::text_page},
  };
  const auto* const row = std::ranges::find(kRows, request.path, &Row::path);
  const bool is_file = request.path == "/" && is_browser(request.accept);
  return row == std::end(kRows) || is_file ? nullptr : row;
}

net::PageAccess Pages::access(const net::PageRequest& request) const {
  if (const Row* const row = row_of(request)) {
    return row->access;
  }
  return is_page_file(request.path) ? net::PageAccess::Shell : net::PageAccess::Jobs;
}

std::optional<net::HttpReply> Pages::on_get(const net::PageRequest& request) {
  const Row* const row = row_of(request);
  return row == nullptr ? page_file(request.path) : std::optional((this->*row->answer)(request));
}

net::HttpReply Pages::livez(const net::PageRequest& request) {
  return probe_reply("livez", live_checks(), parse_probe_query(request.query));
}

net::HttpReply Pages::readyz(const net::PageRequest& request) {
  return probe_reply("readyz", ready_checks(), parse_probe_query(request.query));
}

net::HttpReply Pages::startupz(const net::PageRequest& request) {
  return probe_reply("startupz", startup_checks(), parse_probe_query(request.query));
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

net::HttpReply Pages::healthz(const net::PageRequest& request) {
  const ProbeQuery query = parse_probe_query(request.query);
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

/// Whoever asks: one text a second for all of them. The operator sees this moment.
net::HttpReply Pages::metrics(const net::PageRequest& request) {
  if (request.trusted) {
    metrics_at_ = {};
  }
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

net::HttpReply Pages::status(const net::PageRequest& request) {
  if (!request.trusted) {
    const nlohmann::ordered_json body{
        {"version", kVersion},
        {"incarnation", state_.incarnation},
        {"state", state_.text()},
        {"hint", "jobs are shown over the unix socket (gradsyncd status), or with a token of [server]"}};
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

net::HttpReply Pages::steps(const net::PageRequest& request) {
  const Result<StepsQuery> job = parse_steps_query(request.query);
  if (!job) {
    return error_reply(job.error());
  }
  if (!request.trusted) {
    return error_reply(make_error(
        ErrorCode::Unauthorized,
        "jobs are shown over the unix socket, or with a token of [server]",
        "run: gradsyncd status"
    ));
  }
  const Result<rpc::StepsAnswer> answer = steps_of(*job);
  return answer ? net::HttpReply{200, "application/json", rpc::to_json(*answer) + "\n"} : error_reply(answer.error());
}

Result<rpc::StepsAnswer> Pages::steps_of(const StepsQuery& job) const {
  return clock_.turn("a page", [&]() -> Result<rpc::StepsAnswer> {
    const auto reports = engine_.stats(job.uid, job.job, kShownSteps);
    if (!reports) {
      return reports.error();
    }
    const std::vector<engine::JobKey> recorded = engine_.recorded_jobs();  // this one, too
    const auto key = std::ranges::find_if(recorded, [&](const engine::JobKey& one) {
      return one.second == job.job && job.uid.value_or(one.first) == one.first;
    });
    return recent_steps(*reports, *engine_.dump_of(*key));
  });
}

net::HttpReply Pages::text_page(const net::PageRequest& request) {
  StatusPage content;
  content.version = kVersion;
  content.state = state_.text();
  content.incarnation = state_.incarnation;
  content.uptime_s = seconds(std::chrono::steady_clock::now() - state_.started_at);
  if (request.trusted) {
    content.jobs = jobs();
  }
  return {200, "text/html; charset=utf-8", render_status_page(content)};
}

}  // namespace gradsync::app
