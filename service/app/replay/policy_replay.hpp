#pragma once
// Replays policies over the norms of a recorded run, and says what they would have done.

#include "app/replay/norm_trace.hpp"
#include "app/replay/policy_text.hpp"
#include "plan/clip/clip_rule.hpp"

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace gradsync::app {

/// One policy over a whole trace.
struct Replay {
  std::string policy;  ///< as written
  std::vector<plan::ClipOutcome> outcomes;

  [[nodiscard]] std::size_t clipped() const;
  [[nodiscard]] std::size_t count(plan::StepAction action) const;
};

/// The norms are those of the trace to the bit, and so is what a daemon that saw them would have decided. A coefficient
/// can differ in its last digits from that of a group of float32, which a daemon rounds to float32.
[[nodiscard]] Replay replay_policy(const NamedPolicy& policy, std::span<const RecordedNorm> norms);

/// An SVG picture: norms over steps as dots on a logarithmic axis, a line for each policy's threshold, and norms that
/// it clipped in its colour. A column of many steps shows the least and the greatest norm of it.
[[nodiscard]] std::string plot_thresholds(std::span<const RecordedNorm> norms, std::span<const Replay> replays);

}  // namespace gradsync::app
