"""Faults in clipping that adapts: what is remembered, what is decided, and what every rank is left with."""

from __future__ import annotations

from mutant import Mutant

__all__ = ["POLICY"]


def service(name: str, fault: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(name, fault, "policy", f"service/{file}", old, new)


POLICY = (
    service(
        "clipped-norms-remembered",
        "The window holds what is left after the clip: thresholds sink from clip to clip.",
        "policy/policy.cpp",
        "    percentile->record(outcome.norm);",
        "    percentile->record(std::min(outcome.norm, outcome.threshold));",
    ),
    service(
        "skipped-norms-remembered",
        "A spike that was skipped raises the next threshold.",
        "policy/policy.cpp",
        "  if (!takes_every_norm() && !(stepped && std::isfinite(outcome.norm))) {",
        "  if (!takes_every_norm() && !std::isfinite(outcome.norm)) {",
    ),
    service(
        "variance-around-the-mean-before",
        "ZClip's variance is taken around the mean that it had before this norm.",
        "policy/zscore.cpp",
        "  mean_ = options_.alpha * mean_ + (1 - options_.alpha) * value;\n"
        "  variance_ = options_.alpha * variance_ + (1 - options_.alpha) * ((value - mean_) * (value - mean_));",
        "  const double before = mean_;\n"
        "  mean_ = options_.alpha * mean_ + (1 - options_.alpha) * value;\n"
        "  variance_ = options_.alpha * variance_ + (1 - options_.alpha) * ((value - before) * (value - before));",
    ),
    service(
        "warm-one-norm-late",
        "The percentile is waited for one step longer than declared.",
        "policy/percentile.cpp",
        "  if (window_.size() < static_cast<std::size_t>(options_.warmup)) {",
        "  if (window_.size() <= static_cast<std::size_t>(options_.warmup)) {",
    ),
    service(
        "auto-forgets-skipped-norms",
        "Auto clipping remembers as the policy percentile does: not every norm.",
        "policy/policy.cpp",
        "  if (!takes_every_norm() && !(stepped && std::isfinite(outcome.norm))) {",
        "  if (!stepped || !std::isfinite(outcome.norm)) {",
    ),
    service(
        "auto-has-no-threshold-of-zero",
        "A percentile of 0 leaves auto clipping its ceiling.",
        "policy/percentile.cpp",
        "(threshold > 0 || to_the_letter_)",
        "threshold > 0",
    ),
    service(
        "a-nan-does-not-count",
        "The percentile is that of the other norms in the window.",
        "policy/norm_window.cpp",
        "  if (sorted_.size() < ring_.size()) {",
        "  if (sorted_.empty()) {",
    ),
    service(
        "a-nan-never-leaves",
        "The place of a NaN in the window stays lost to the norm that takes it.",
        "policy/norm_window.cpp",
        "  if (std::isnan(oldest)) {\n    sort_in(norm);\n    return;",
        "  if (std::isnan(oldest)) {\n    return;",
    ),
    service(
        "nans-saved-as-they-came",
        "Nodes whose arithmetic makes other NaNs have unequal states.",
        "policy/percentile.cpp",
        "window_.push(std::isnan(norm) ? kNaN : norm);",
        "window_.push(norm);",
    ),
    service(
        "auto-forgets-overflows-of-a-scaler",
        "Auto clipping leaves out the steps that the loss scaler skips.",
        "engine/policies/group_policies.cpp",
        "    record_overflow(step, prepared);\n    return;",
        "    return;",
    ),
    service(
        "clips-that-come-together-counted-apart",
        "Norms of neighbouring steps count as independent: a run with bursts is called ill.",
        "policy/health.cpp",
        "  const double steps = static_cast<double>(whole_->own_steps) * (1 - correlation) / (1 + correlation);",
        "  const double steps = static_cast<double>(whole_->own_steps) * (1 - correlation) / (1 - correlation);",
    ),
    service(
        "steps-of-the-ceiling-in-the-clip-rate",
        "Where the ceiling decides, the clip rate is compared with that of the percentile.",
        "policy/health.cpp",
        "  if (has_own && step.own < step.ceiling) {",
        "  if (has_own) {",
    ),
    service(
        "signs-never-end",
        "A sign that began is never over.",
        "policy/health.cpp",
        "signs_.set(static_cast<std::size_t>(sign), present);",
        "signs_.set(static_cast<std::size_t>(sign), present || has(sign));",
    ),
    service(
        "health-forgotten-with-each-plan",
        "Declaring as before begins a new window, and a sign is over without a word.",
        "engine/policies/policy_keeper.cpp",
        "  if (!first) {\n    next.continue_health(std::move(*policies_));\n  }",
        "",
    ),
    service(
        "watchers-learn-what-was-decided",
        "A policy that only watches records the outcome of the one that decides.",
        "engine/policies/group_policies.cpp",
        "groups_[group].policies[policy].record(outcome);",
        "groups_[group].policies[policy].record(step.outcomes[group]);",
    ),
    service(
        "overflows-of-a-scaler-remembered",
        "A step that the loss scaler skips is recorded.",
        "engine/policies/group_policies.cpp",
        "  if (step.scaled && !std::all_of(",
        "  if (step.scaled && step.raw_norms.empty() && !std::all_of(",
    ),
    service(
        "one-lost-policy-loses-all",
        "A watcher that was added costs the others what they remember.",
        "engine/policies/group_policies.cpp",
        "      if (policy < taken.size() && found->policies[policy].restore(before.states[policy])) {",
        "      if (found->policies.size() != taken.size()) {\n        continue;\n      }\n"
        "      if (policy < taken.size() && found->policies[policy].restore(before.states[policy])) {",
    ),
    service(
        "the-first-that-found-something-decides",
        "The report names a group with a spike where another group's NaN decided.",
        "engine/report/step_report.cpp",
        "    if (outcome.decides) {",
        "    if (report.decided_by.empty() && outcome.action == plan::StepAction::Raise &&\n"
        "        (outcome.spike || outcome.decides)) {",
    ),
    service(
        "a-spike-outdoes-a-nan",
        "A norm beside one that is not finite decides.",
        "plan/clip/clip_rule.cpp",
        "    return action == 0 || std::isfinite(outcome.norm) ? action : action + 2;",
        "    return action;",
    ),
    service(
        "deferred-copies-hide-a-nan",
        "A replica of one contributor counts as unchanged once its copies wait.",
        "device/host/bucket_reduction.cpp",
        "sums[sum].destinations.size() == 1 && pointers.sources[0]",
        "pointers.destinations.size() == 1 && pointers.sources[0]",
    ),
    service(
        "a-skipped-step-leaves-copies-out",
        "After a skip only some ranks have the sums.",
        "device/host/gradient_scaling.cpp",
        "      } else if (bucket.deferred) {",
        "      } else if (bucket.deferred && outcome != nullptr) {",
    ),
    service(
        "a-norm-alone-leaves-copies-out",
        "Trainers that look at gradients between norm.compute and clip.apply see their own.",
        "device/step/step_finish.cpp",
        "    math.clip_s = passes.write_deferred(plan);  // trainers see the sums before they are multiplied\n",
        "",
    ),
)
