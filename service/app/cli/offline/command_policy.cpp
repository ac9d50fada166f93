#include "app/cli/commands.hpp"
#include "app/cli/exit_code.hpp"
#include "app/cli/offline/named_file.hpp"
#include "app/config/settings.hpp"
#include "app/replay/policy_replay.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>

namespace gradsync::app {

namespace {

using Json = nlohmann::ordered_json;

const char* name_of(plan::StepAction action) {
  constexpr const char* kNames[] = {"step", "zero", "skip", "raise"};
  return kNames[static_cast<std::size_t>(action)];
}

/// Writes a number as the wire does: one that JSON cannot express is a string.
Json number(double value) {
  if (std::isnan(value)) {
    return "NaN";
  }
  return std::isinf(value) ? Json(value > 0 ? "Infinity" : "-Infinity") : Json(value);
}

void print_lines(std::span<const RecordedNorm> norms, std::span<const Replay> replays) {
  for (std::size_t i = 0; i < norms.size(); ++i) {
    Json line{{"step", norms[i].step}, {"norm", number(norms[i].norm)}, {"policies", Json::array()}};
    for (const Replay& replay : replays) {
      const plan::ClipOutcome& outcome = replay.outcomes[i];
      line["policies"].push_back(
          {{"policy", replay.policy},
           {"threshold", number(outcome.threshold)},
           {"coefficient", number(outcome.coefficient)},
           {"clipped", outcome.clipped},
           {"action", name_of(outcome.action)},
           {"reason", outcome.reason}}
      );
    }
    std::cout << line.dump() << "\n";
  }
}

std::string threshold_range(const Replay& replay) {
  std::vector<double> thresholds;
  for (const plan::ClipOutcome& outcome : replay.outcomes) {
    if (std::isfinite(outcome.threshold)) {
      thresholds.push_back(outcome.threshold);
    }
  }
  if (thresholds.empty()) {
    return "no threshold";
  }
  const double last = thresholds.back();
  const auto middle = thresholds.begin() + static_cast<std::ptrdiff_t>(thresholds.size() / 2);
  std::nth_element(thresholds.begin(), middle, thresholds.end());
  const double median = *middle;
  const auto [least, greatest] = std::minmax_element(thresholds.begin(), thresholds.end());
  return fmt::format("threshold {:.4g} to {:.4g}, median {:.4g}, at the end {:.4g}", *least, *greatest, median, last);
}

void print_summary(const NormTrace& trace, std::span<const Replay> replays) {
  const auto steps = static_cast<double>(trace.norms.size());
  const auto finite = std::count_if(trace.norms.begin(), trace.norms.end(), [](const RecordedNorm& entry) {
    return std::isfinite(entry.norm);
  });
  std::cout << fmt::format(
      "{} steps, {} to {}; {} norms are not finite",
      trace.norms.size(),
      trace.norms.front().step,
      trace.norms.back().step,
      static_cast<std::ptrdiff_t>(trace.norms.size()) - finite
  );
  if (trace.other_lines != 0) {
    std::cout << fmt::format("; {} lines have no norm", trace.other_lines);
  }
  std::cout << "\n";
  for (const Replay& replay : replays) {
    std::cout << fmt::format(
        "{}\n  {} steps clipped ({:.2f} %), {} skipped, {} raised, {} zeroed\n  {}\n",
        replay.policy,
        replay.clipped(),
        100 * static_cast<double>(replay.clipped()) / steps,
        replay.count(plan::StepAction::Skip),
        replay.count(plan::StepAction::Raise),
        replay.count(plan::StepAction::Zero),
        threshold_range(replay)
    );
  }
}

int refuse(const Error& error, int exit_code) {
  complain(error.path.empty() ? error.message : fmt::format("{}: {}", error.path, error.message), error.hint);
  return exit_code;
}

}  // namespace

int execute(const PolicyReplayCommand& command) {
  std::vector<NamedPolicy> policies;
  for (const std::string& text : command.policies) {
    Result<NamedPolicy> policy = read_policy(text);
    if (!policy) {
      return refuse(policy.error(), kExitUsage);
    }
    policies.push_back(std::move(*policy));
  }
  std::ifstream file;
  if (command.file != "-" &&
      !open_to_read(file, command.file, "write it with JsonlTracker(path, every=1), or pass - for standard input")) {
    return kExitUsage;
  }
  const Result<NormTrace> trace =
      read_norm_trace(command.file == "-" ? std::cin : file, command.key, command.clip_group);
  if (!trace) {
    return refuse(trace.error(), kExitFailure);
  }
  std::vector<Replay> replays;
  for (const NamedPolicy& policy : policies) {
    replays.push_back(replay_policy(policy, trace->norms));
  }
  if (command.json) {
    print_lines(trace->norms, replays);
  } else {
    print_summary(*trace, replays);
  }
  if (!command.plot.empty()) {
    std::ofstream plot(command.plot);
    if (!(plot << plot_thresholds(trace->norms, replays)).flush()) {
      return refuse_file("write", command.plot, "name a file in a folder that can be written");
    }
  }
  return kExitOk;
}

}  // namespace gradsync::app
