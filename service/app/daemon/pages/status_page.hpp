#pragma once
// The status page for people: one HTML document that loads nothing from anywhere. Pure.

#include "engine/report/report.hpp"

#include <optional>
#include <string>
#include <vector>

namespace gradsync::app {

struct StatusPage {
  std::string version;
  std::string state;
  std::string incarnation;
  double uptime_s = 0;
  std::optional<std::vector<engine::JobStatus>> jobs;  ///< empty: the reader may not see them
};

[[nodiscard]] std::string render_status_page(const StatusPage& page);

/// 0.5 → "0.5"; one that clips nothing → "no threshold".
[[nodiscard]] std::string threshold_text(double threshold);

/// One policy in a line, without its signs.
[[nodiscard]] std::string clip_text(const engine::ClipStatus& policy);

/// 42.0 → "42 s", 3723 → "1 h 2 min".
[[nodiscard]] std::string human_seconds(double seconds);

}  // namespace gradsync::app
