#include "engine/policies/group_policies.hpp"

#include "base/text/text.hpp"
#include "engine/policies/group_state_bytes.hpp"
#include "plan/check/check_max_norm.hpp"
#include "plan/check/check_policy.hpp"
#include "plan/check/words.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>
#include <variant>

namespace gradsync::engine {

namespace {

template <typename Groups>
std::vector<std::string> names_of(const Groups& groups) {
  std::vector<std::string> names;
  for (const auto& group : groups) {
    names.push_back(group.name);
  }
  return names;
}

bool is_finite(const plan::ClipOutcome& outcome) { return std::isfinite(outcome.norm); }

/// `policy`: 0 is the one that decides.
const plan::ClipOutcome& outcome_of(
    const DoneStep& step, const PreparedStep& prepared, std::size_t group, std::size_t policy
) {
  return policy == 0 ? step.outcomes[group] : prepared.watched[group][policy - 1];
}

/// `rule`: that of the step.
policy::ClipStep clip_step(const plan::ClipRule& rule, const plan::ClipOutcome& outcome) {
  policy::ClipStep step{.norm = outcome.norm, .threshold = outcome.threshold, .clipped = outcome.clipped};
  if (rule.bound.kind != plan::ClipBound::Kind::None) {
    step.own = rule.bound.begin;
  }
  step.ceiling = rule.max_norm.value_or(step.ceiling);
  return step;
}

}  // namespace

GroupPolicies::GroupPolicies(const plan::Plan& plan) : mode_(plan.options.mode), norm_type_(plan.options.norm_type) {
  groups_.reserve(plan.clip_groups.size());
  for (const plan::ClipGroup& group : plan.clip_groups) {
    groups_.push_back({group.name, group.clip, group.norm_dtype, {}, {}});
    groups_.back().policies = new_policies(groups_.back());
    groups_.back().health.emplace_back(group.clip.policy);
    for (const plan::PolicyOptions& watching : group.clip.watch) {
      groups_.back().health.emplace_back(watching);
    }
  }
}

const plan::PolicyOptions& GroupPolicies::options(std::size_t group, std::size_t policy) const {
  const plan::ClipOptions& clip = groups_[group].clip;
  return policy == 0 ? clip.policy : clip.watch[policy - 1];
}

std::vector<policy::Policy> GroupPolicies::new_policies(const Group& group) const {
  std::vector<policy::Policy> policies;
  policies.reserve(1 + group.clip.watch.size());
  policies.emplace_back(group.clip, mode_, group.norm_dtype, norm_type_);
  plan::ClipOptions clip = group.clip;
  for (const plan::PolicyOptions& options : group.clip.watch) {
    clip.policy = options;
    policies.emplace_back(clip, mode_, group.norm_dtype, norm_type_);
  }
  return policies;
}

plan::ClipRule GroupPolicies::rule(std::size_t group, std::size_t policy, const StepMaxNorm& step) const {
  plan::ClipRule rule = groups_[group].policies[policy].rule();
  const plan::ClipOptions& clip = groups_[group].clip;
  const plan::PolicyOptions& own = options(group, policy);
  if (group >= step.groups || std::holds_alternative<plan::ObservePolicy>(own)) {
    return rule;
  }
  rule.max_norm = step.max_norm;
  if (std::holds_alternative<plan::FixedPolicy>(own)) {
    const bool limited = step.max_norm.value_or(0) > 0;
    rule.spike_above = limited ? clip.spike_factor * *step.max_norm : std::numeric_limits<double>::infinity();
  }
  return rule;
}

Result<void> GroupPolicies::check(const StepMaxNorm& max_norm) const {
  for (std::size_t group = 0; group < std::min(max_norm.groups, groups_.size()); ++group) {
    plan::ClipOptions clip;
    clip.max_norm = max_norm.max_norm;
    clip.zero_rule = groups_[group].clip.zero_rule;
    if (auto checked = plan::check_max_norm(clip, "max_norm"); !checked) {
      return checked;
    }
  }
  return {};
}

void GroupPolicies::rules(const StepMaxNorm& max_norm, std::vector<plan::ClipRule>& rules) const {
  rules.clear();
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    rules.push_back(rule(group, 0, max_norm));
  }
}

void GroupPolicies::prepare(const DoneStep& step, PreparedStep& prepared) {
  prepared.steps.clear();
  prepared.changes.clear();
  std::size_t policies = 0;
  prepared.watched.resize(groups_.size());
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    policies += groups_[group].policies.size();
    prepared.watched[group].resize(groups_[group].policies.size() - 1);
    for (std::size_t policy = 1; policy < groups_[group].policies.size(); ++policy) {
      const plan::ClipRule own = rule(group, policy, step.max_norm);
      plan::apply_clip_rule(own, step.raw_norms[group], step.scale, prepared.watched[group][policy - 1]);
    }
  }
  if (step.scaled && !std::all_of(step.outcomes.begin(), step.outcomes.end(), is_finite)) {
    record_overflow(step, prepared);
    return;
  }
  prepared.steps.reserve(policies);
  prepared.changes.reserve(policies);
  // Nothing allocates from here on: a policy has room for all its norms from the beginning.
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    for (std::size_t policy = 0; policy < groups_[group].policies.size(); ++policy) {
      const plan::ClipOutcome& outcome = outcome_of(step, prepared, group, policy);
      prepared.steps.push_back(clip_step(rule(group, policy, step.max_norm), outcome));
      groups_[group].policies[policy].record(outcome);
    }
  }
}

void GroupPolicies::record_overflow(const DoneStep& step, const PreparedStep& prepared) {
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    for (std::size_t policy = 0; policy < groups_[group].policies.size(); ++policy) {
      if (groups_[group].policies[policy].takes_every_norm()) {
        groups_[group].policies[policy].record(outcome_of(step, prepared, group, policy));
      }
    }
  }
}

void GroupPolicies::commit(PreparedStep& prepared) {
  auto step = prepared.steps.begin();
  for (std::size_t group = 0; group < groups_.size() && step != prepared.steps.end(); ++group) {
    for (std::size_t policy = 0; policy < groups_[group].policies.size(); ++policy, ++step) {
      const policy::Health::Changes signs = groups_[group].health[policy].observe(*step);
      if (signs.began.any() || signs.ended.any()) {
        prepared.changes.push_back({group, policy, signs});
      }
    }
  }
}

std::string GroupPolicies::words(const HealthChange& change, policy::Sign sign) const {
  return fmt::format(
      "clip group '{}', {}{}: {}",
      groups_[change.group].name,
      plan::words_of(options(change.group, change.policy)),
      change.policy == 0 ? "" : " (watches)",
      groups_[change.group].health[change.policy].words(sign)
  );
}

std::vector<ClipStatus> GroupPolicies::status() const {
  std::vector<ClipStatus> entries;
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    for (std::size_t policy = 0; policy < groups_[group].health.size(); ++policy) {
      if (entries.size() == kMostClipStatuses) {
        return entries;
      }
      const policy::Health& health = groups_[group].health[policy];
      const policy::ClipWindow& window = health.window();
      ClipStatus& entry = entries.emplace_back();
      entry.group = groups_[group].name;
      entry.policy = plan::words_of(options(group, policy));
      entry.watches = policy > 0;
      entry.steps = window.steps;
      entry.clip_rate = window.clip_rate();
      entry.threshold = window.threshold;
      entry.threshold_lowest = window.lowest;
      entry.threshold_highest = window.steps == 0 ? window.lowest : window.highest;
      for (const policy::Sign sign : policy::kSigns) {
        if (health.has(sign)) {
          entry.signs.push_back(health.words(sign));
        }
      }
    }
  }
  return entries;
}

void GroupPolicies::continue_health(GroupPolicies&& before) {
  for (Group& group : groups_) {
    const auto same = std::find_if(before.groups_.begin(), before.groups_.end(), [&group](const Group& earlier) {
      return earlier.name == group.name && earlier.clip == group.clip;
    });
    if (same != before.groups_.end()) {
      group.health = std::move(same->health);
    }
  }
}

std::string GroupPolicies::save(std::string& bytes) const {
  GroupStateWriter writer(bytes, groups_.size());
  std::string state;
  for (const Group& group : groups_) {
    writer.begin_group(group.name, group.policies.size());
    for (const policy::Policy& policy : group.policies) {
      policy.save(state);
      writer.add(state);
    }
  }
  return writer.finish();
}

bool GroupPolicies::remember() const {
  return std::any_of(groups_.begin(), groups_.end(), [](const Group& group) {
    return plan::remembered_norms(group.clip) > 0 || group.clip.spike == plan::SpikeAction::Skip;
  });
}

std::string GroupPolicies::digest() const {
  std::string bytes;
  return save(bytes);
}

Result<void> GroupPolicies::restore(std::string_view bytes) {
  const Result<std::vector<SavedGroup>> saved = read_group_states(bytes);
  if (!saved) {
    return saved.error();
  }
  const std::vector<std::string> names = names_of(*saved);
  if (const std::vector<std::string> own = names_of(groups_); names != own) {
    return invalid_params(
        "state",
        fmt::format("the state is of clip groups {}, the job has {}", enumerate_names(names), enumerate_names(own)),
        "declare the clip groups that the state is of, in their order, or begin anew without it"
    );
  }
  std::vector<std::vector<policy::Policy>> restored;
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    Result<std::vector<policy::Policy>> policies = restored_policies(groups_[group], (*saved)[group].states);
    if (!policies) {
      return policies.error();
    }
    restored.push_back(std::move(*policies));
  }
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    groups_[group].policies = std::move(restored[group]);
  }
  return {};
}

Result<std::vector<policy::Policy>> GroupPolicies::restored_policies(
    const Group& group, const std::vector<std::string_view>& states
) const {
  std::vector<policy::Policy> policies = new_policies(group);
  if (states.size() != policies.size()) {
    return invalid_params(
        "state",
        fmt::format(
            "the state of clip group '{}' is of {} policies, the group has {}, watching ones included",
            group.name,
            states.size(),
            policies.size()
        ),
        "declare the policies that the state is of, or begin anew without it"
    );
  }
  for (std::size_t policy = 0; policy < policies.size(); ++policy) {
    if (const Result<void> restored = policies[policy].restore(states[policy]); !restored) {
      Error error = restored.error();
      const std::string place = policy == 0 ? "policy" : fmt::format("watch[{}]", policy - 1);
      error.message = fmt::format("clip group '{}', {}: {}", group.name, place, error.message);
      return error;
    }
  }
  return policies;
}

Result<bool> GroupPolicies::take_over(std::string_view saved) {
  const Result<std::vector<SavedGroup>> earlier = read_group_states(saved);
  if (!earlier) {
    return earlier.error();
  }
  bool all = true;
  for (const SavedGroup& before : *earlier) {
    const auto same_name = [&before](const Group& group) { return group.name == before.name; };
    const auto found = std::find_if(groups_.begin(), groups_.end(), same_name);
    std::vector<bool> taken(before.states.size());
    std::transform(before.states.begin(), before.states.end(), taken.begin(), std::not_fn(policy::remembers_norms));
    for (std::size_t policy = 0; found != groups_.end() && policy < found->policies.size(); ++policy) {
      if (policy < taken.size() && found->policies[policy].restore(before.states[policy])) {
        taken[policy] = true;
        continue;
      }
      for (std::size_t state = 0; state < taken.size(); ++state) {
        if (found->policies[policy].restore(before.states[state])) {
          taken[state] = true;
          break;
        }
      }
    }
    all = all && std::find(taken.begin(), taken.end(), false) == taken.end();
  }
  return all;
}

}  // namespace gradsync::engine
