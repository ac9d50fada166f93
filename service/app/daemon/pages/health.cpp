#include "app/daemon/pages/health.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace gradsync::app {

ProbeQuery parse_probe_query(std::string_view query) {
  ProbeQuery result;
  for (std::size_t at = 0; at < query.size();) {
    const std::size_t end = std::min(query.find('&', at), query.size());
    const std::string_view part = query.substr(at, end - at);
    if (part == "verbose" || part.starts_with("verbose=")) {
      result.verbose = part != "verbose=false" && part != "verbose=0";
    } else if (part.starts_with("exclude=")) {
      result.excluded.emplace_back(part.substr(8));
    }
    at = end + 1;
  }
  return result;
}

net::HttpReply probe_reply(std::string_view probe, const std::vector<HealthCheck>& checks, const ProbeQuery& query) {
  std::string lines;
  bool passed = true;
  for (const HealthCheck& check : checks) {
    if (std::find(query.excluded.begin(), query.excluded.end(), check.name) != query.excluded.end()) {
      lines += fmt::format("[+]{} excluded: ok\n", check.name);
    } else if (check.failure.empty()) {
      lines += fmt::format("[+]{} ok\n", check.name);
    } else {
      passed = false;
      lines += fmt::format("[-]{} failed: {}\n", check.name, check.failure);
    }
  }
  for (const std::string& name : query.excluded) {
    if (std::none_of(checks.begin(), checks.end(), [&](const HealthCheck& check) { return check.name == name; })) {
      lines += fmt::format("warn: nothing to exclude is named '{}'\n", name);
    }
  }
  net::HttpReply reply;
  reply.status = passed ? 200 : 503;
  reply.content_type = "text/plain; charset=utf-8";
  if (passed && !query.verbose) {
    reply.body = "ok";
  } else {
    reply.body = fmt::format("{}{} check {}\n", lines, probe, passed ? "passed" : "failed");
  }
  return reply;
}

}  // namespace gradsync::app
