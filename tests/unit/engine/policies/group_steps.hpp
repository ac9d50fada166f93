#pragma once
// Clip groups with policies, and steps of them as the engine does them.

#include "engine/policies/group_policies.hpp"

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gradsync::engine {

inline plan::ClipOptions clip(
    plan::PolicyOptions policy, std::vector<plan::PolicyOptions> watch = {}, std::optional<double> max_norm = 1
) {
  plan::ClipOptions clip;
  clip.max_norm = max_norm;
  clip.policy = policy;
  clip.watch = std::move(watch);
  return clip;
}

/// Groups "a", "b", … with doubles as norms, so that a test sees every bit.
inline plan::Plan plan_of(const std::vector<plan::ClipOptions>& clips) {
  plan::Plan plan;
  for (const plan::ClipOptions& options : clips) {
    plan::ClipGroup& group = plan.clip_groups.emplace_back();
    group.name = std::string(1, static_cast<char>('a' + plan.clip_groups.size() - 1));
    group.clip = options;
    group.norm_dtype = plan::DType::Float64;
  }
  return plan;
}

inline const plan::PercentilePolicy kMedian{50, 10, 3};
inline const plan::ZScorePolicy kScore{2.5, 0.97, 4};
inline const plan::AutoPolicy kAuto{{50, 10, 3}};

/// One policy of each kind decides, and one of each watches it.
inline plan::Plan every_kind() {
  const std::vector<plan::PolicyOptions> kinds = {plan::FixedPolicy{}, plan::ObservePolicy{}, kMedian, kScore, kAuto};
  std::vector<plan::ClipOptions> clips;
  for (const plan::PolicyOptions& kind : kinds) {
    clips.push_back(clip(kind, kinds));
    clips.back().spike = plan::SpikeAction::Skip;
  }
  return plan_of(clips);
}

inline std::string saved(const GroupPolicies& policies) {
  std::string bytes;
  policies.save(bytes);
  return bytes;
}

struct Step : PreparedStep {
  std::vector<plan::ClipOutcome> outcomes;
};

/// As the engine does it: rules, what the lane makes of them, prepare, commit.
inline Step step(
    GroupPolicies& policies,
    const std::vector<double>& norms,
    const StepMaxNorm& max_norm = {},
    double scale = 1,
    bool scaled = false
) {
  std::vector<plan::ClipRule> rules;
  policies.rules(max_norm, rules);
  Step step;
  for (std::size_t group = 0; group < rules.size(); ++group) {
    step.outcomes.push_back(plan::apply_clip_rule(rules[group], norms[group], scale));
  }
  plan::decide_together(step.outcomes);
  policies.prepare({step.outcomes, norms, scale, scaled, max_norm}, step);
  policies.commit(step);
  return step;
}

}  // namespace gradsync::engine
