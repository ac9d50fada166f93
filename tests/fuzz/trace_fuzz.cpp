// A policy and a trace of `gradsyncd policy replay`, from texts to the picture: a line for the policy, then the trace.

#include "app/replay/norm_trace.hpp"
#include "app/replay/policy_replay.hpp"
#include "app/replay/policy_text.hpp"
#include "fuzz/fuzz.hpp"

#include <algorithm>
#include <sstream>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gradsync;  // NOLINT(google-build-using-namespace): a main file
  const std::string text(fuzz::text_of(data, size));
  const std::size_t line = std::min(text.find('\n'), text.size());
  const Result<app::NamedPolicy> policy = app::read_policy(text.substr(0, line));
  std::istringstream in(text.substr(std::min(line + 1, text.size())));
  const Result<app::NormTrace> trace = app::read_norm_trace(in, "", size % 4 == 0 ? "g" : "");
  if (policy.has_error()) {
    REQUIRE(!policy.error().path.empty() && !policy.error().message.empty());
  }
  if (trace.has_error()) {
    REQUIRE(!trace.error().path.empty() && !trace.error().message.empty());
  }
  if (policy && trace) {
    const std::vector<app::Replay> replays{app::replay_policy(*policy, trace->norms)};
    REQUIRE(replays.front().outcomes.size() == trace->norms.size());
    const std::string svg = app::plot_thresholds(trace->norms, replays);
    REQUIRE(svg.find("nan") == std::string::npos || text.find("nan") != std::string::npos);
  }
  return 0;
}
