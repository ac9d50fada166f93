#include "app/replay/policy_replay.hpp"

#include "policy/policy.hpp"

#include <algorithm>

namespace gradsync::app {

std::size_t Replay::clipped() const {
  return static_cast<std::size_t>(std::count_if(outcomes.begin(), outcomes.end(), [](const plan::ClipOutcome& outcome) {
    return outcome.clipped;
  }));
}

std::size_t Replay::count(plan::StepAction action) const {
  return static_cast<std::size_t>(std::count_if(
      outcomes.begin(), outcomes.end(), [action](const plan::ClipOutcome& outcome) { return outcome.action == action; }
  ));
}

Replay replay_policy(const NamedPolicy& policy, std::span<const RecordedNorm> norms) {
  Replay replay{policy.text, {}};
  replay.outcomes.reserve(norms.size());
  policy::Policy state(policy.clip, policy.mode, plan::DType::Float64);
  for (const RecordedNorm& entry : norms) {
    replay.outcomes.push_back(plan::apply_clip_rule(state.rule(), entry.norm, 1));
    state.record(replay.outcomes.back());
  }
  return replay;
}

}  // namespace gradsync::app
