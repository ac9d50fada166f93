#pragma once
// The probes: named checks, `?verbose` and `?exclude=name` as in kube-apiserver. Pure functions of the checks.

#include "net/server.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace gradsync::app {

struct HealthCheck {
  std::string name;
  std::string failure;  ///< empty: ok
};

/// Query parts of a probe.
struct ProbeQuery {
  bool verbose = false;
  std::vector<std::string> excluded;
};

[[nodiscard]] ProbeQuery parse_probe_query(std::string_view query);

/// 200 "ok" or 503; a failure always says which check failed and why, `verbose` lists all checks.
[[nodiscard]] net::HttpReply probe_reply(
    std::string_view probe, const std::vector<HealthCheck>& checks, const ProbeQuery& query
);

}  // namespace gradsync::app
