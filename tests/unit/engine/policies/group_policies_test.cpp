// The policies of a job, step by step: rules, records, and what watchers would have done.

#include "fakes/not_finite.hpp"
#include "unit/engine/policies/failing_allocation.hpp"
#include "unit/engine/policies/group_steps.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <new>
#include <random>

namespace gradsync::engine {
namespace {

using plan::ClipBound;
using plan::ClipOutcome;
using plan::NonfiniteAction;
using plan::SpikeAction;
using plan::StepAction;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(GroupPolicies, a_norm_decides_on_the_steps_after_its_own) {
  GroupPolicies policies(plan_of({clip(kMedian)}));
  EXPECT_EQ(step(policies, {0.5}).outcomes[0].threshold, 1);
  step(policies, {4});
  EXPECT_EQ(step(policies, {0.25}).outcomes[0].threshold, 1) << "the ceiling, before warm-up";
  EXPECT_EQ(step(policies, {0.75}).outcomes[0].threshold, 0.5);
  EXPECT_EQ(step(policies, {0.75}).outcomes[0].threshold, 0.625);
  std::vector<plan::ClipRule> rules;
  policies.rules({}, rules);
  policies.rules({}, rules);
  EXPECT_EQ(rules.size(), 1U);
  EXPECT_EQ(rules[0].bound.begin, 0.75) << "asking is not recording";
}

TEST(GroupPolicies, a_group_without_a_policy_of_its_own_has_the_rule_of_before) {
  plan::ClipOptions torch = clip(plan::FixedPolicy{});
  torch.zero_rule = plan::ZeroRule::Zero;
  plan::Plan plan = plan_of({torch, clip(plan::FixedPolicy{}, {}, std::nullopt)});
  plan.options.mode = plan::ClipMode::Torch;
  plan.clip_groups[0].norm_dtype = plan::DType::Float32;
  GroupPolicies policies(plan);
  std::vector<plan::ClipRule> rules;
  policies.rules({}, rules);
  EXPECT_EQ(rules[0].max_norm, 1);
  EXPECT_EQ(rules[0].mode, plan::ClipMode::Torch);
  EXPECT_EQ(rules[0].zero_rule, plan::ZeroRule::Zero);
  EXPECT_EQ(rules[0].norm_dtype, plan::DType::Float32);
  EXPECT_EQ(rules[0].bound.kind, ClipBound::Kind::None);
  EXPECT_EQ(rules[1].max_norm, std::nullopt);
  EXPECT_THAT(step(policies, {1, 1}).watched, ElementsAre(IsEmpty(), IsEmpty()));
}

TEST(GroupPolicies, watchers_say_and_record_what_each_would_have_done_alone) {
  plan::ClipOptions watched = clip(plan::FixedPolicy{}, {kMedian, kScore, plan::ObservePolicy{}}, 1.25);
  watched.spike = SpikeAction::Skip;
  GroupPolicies policies(plan_of({watched}));
  std::vector<policy::Policy> alone;
  for (const plan::PolicyOptions& options : watched.watch) {
    plan::ClipOptions own = watched;
    own.policy = options;
    alone.emplace_back(own, plan::ClipMode::Strict, plan::DType::Float64);
  }
  std::mt19937_64 random(7);
  std::lognormal_distribution<double> norms(-0.5, 0.6);
  std::size_t skipped = 0;
  for (int i = 0; i < 300; ++i) {
    const double norm = i % 41 == 40 ? kNaN : norms(random) * (i % 17 == 0 ? 8 : 1);
    const Step done = step(policies, {norm * 4}, {}, 4);
    ASSERT_EQ(done.watched[0].size(), 3U);
    for (std::size_t w = 0; w < 3; ++w) {
      const ClipOutcome own = plan::apply_clip_rule(alone[w].rule(), norm, 1);
      alone[w].record(own);
      ASSERT_EQ(done.watched[0][w].threshold, own.threshold) << i << " " << w;
      ASSERT_EQ(done.watched[0][w].action, own.action);
      ASSERT_EQ(done.watched[0][w].reason, own.reason);
    }
    skipped += done.outcomes[0].action != done.watched[0][0].action ? 1 : 0;
  }
  EXPECT_GT(skipped, 0U) << "or the watchers always did as the group";
}

TEST(GroupPolicies, says_of_watchers_what_is_of_this_step_alone) {
  GroupPolicies policies(plan_of({clip(plan::FixedPolicy{}, {kMedian})}));
  PreparedStep step;
  step.watched.assign(3, std::vector<ClipOutcome>(2));
  const std::vector<double> norms = {0.5};
  const std::vector<ClipOutcome> outcomes(1);
  policies.prepare({outcomes, norms}, step);
  ASSERT_EQ(step.watched.size(), 1U);
  ASSERT_EQ(step.watched[0].size(), 1U);
  EXPECT_EQ(step.watched[0][0].norm, 0.5);
}

TEST(GroupPolicies, a_skip_in_one_group_keeps_the_others_from_recording_and_no_watcher) {
  plan::ClipOptions spiky = clip(kMedian);
  spiky.spike = SpikeAction::Skip;
  GroupPolicies policies(plan_of({spiky, clip(kMedian, {kMedian})}));
  for (int i = 0; i < 3; ++i) {
    step(policies, {0.5, 0.5});
  }
  const Step skipped = step(policies, {100, 0.75});
  EXPECT_EQ(skipped.outcomes[1].action, StepAction::Skip);
  EXPECT_EQ(skipped.watched[1][0].action, StepAction::Step);
  EXPECT_TRUE(skipped.watched[1][0].clipped) << "what it would have done";
  step(policies, {0.5, 0.75});
  step(policies, {0.5, 0.75});
  const Step after = step(policies, {0.5, 0.75});
  EXPECT_EQ(after.outcomes[1].threshold, 0.5) << "of 0.5 three times and 0.75 twice";
  EXPECT_EQ(after.watched[1][0].threshold, 0.625) << "of each three times";
}

TEST(GroupPolicies, a_norm_that_is_not_finite_is_not_recorded_and_those_of_other_groups_are) {
  for (const NonfiniteAction action : {NonfiniteAction::Propagate, NonfiniteAction::Zero}) {
    plan::ClipOptions first = clip(kMedian, {kMedian});
    first.nonfinite = action;
    GroupPolicies policies(plan_of({first, clip(kMedian)}));
    for (const double norm : {kNaN, kInfinity, kNaN}) {
      const Step done = step(policies, {norm, 0.5});
      EXPECT_EQ(done.watched[0][0].action, done.outcomes[0].action) << "the group's settings are the watcher's";
    }
    const Step next = step(policies, {4, 4});
    EXPECT_EQ(next.outcomes[0].threshold, 1);
    EXPECT_EQ(next.watched[0][0].threshold, 1);
    EXPECT_EQ(next.outcomes[1].threshold, 0.5);
  }
}

TEST(GroupPolicies, with_a_loss_scale_no_group_records_a_step_that_is_not_finite) {
  GroupPolicies policies(plan_of({clip(kMedian, {kScore}), clip(kMedian, {kMedian})}));
  step(policies, {1024, 2048}, {}, 1024, true);
  const std::string before = saved(policies);
  const Step infinite = step(policies, {1024, kInfinity}, {}, 1024, true);
  EXPECT_EQ(saved(policies), before);
  EXPECT_EQ(infinite.watched[0][0].norm, 1) << "watchers are reported all the same";
  step(policies, {1024, kInfinity}, {}, 1024, false);
  EXPECT_NE(saved(policies), before) << "without a loss scale the group that is finite records";
}

TEST(GroupPolicies, auto_records_a_step_that_a_loss_scaler_skips_and_one_that_another_group_skips) {
  plan::ClipOptions careful = clip(kMedian, {kAuto}, 8);
  careful.nonfinite = NonfiniteAction::Skip;
  for (const bool scaled : {true, false}) {
    GroupPolicies policies(plan_of({clip(kAuto, {kMedian}), careful}));
    step(policies, {0.5, 0.5}, {}, 1, scaled);
    for (int i = 0; i < 2; ++i) {
      step(policies, {0.25, kInfinity}, {}, 1, scaled);
    }
    const Step next = step(policies, {9, 9}, {}, 1, scaled);
    EXPECT_EQ(next.outcomes[0].threshold, 0.25) << "the median of 0.5, 0.25 and 0.25";
    EXPECT_EQ(next.watched[0][0].threshold, scaled ? 1 : 0.25) << "a watcher goes by its own group alone";
    EXPECT_EQ(next.outcomes[1].threshold, 8);
    EXPECT_EQ(next.watched[1][0].threshold, 8) << "the median of 0.5 and two that are infinite is no threshold";
    step(policies, {0.5, 0.5}, {}, 1, scaled);
    step(policies, {0.5, 0.5}, {}, 1, scaled);
    EXPECT_EQ(step(policies, {9, 9}, {}, 1, scaled).watched[1][0].threshold, 4.75) << "of 0.5, inf, inf, 9, 0.5, 0.5";
  }
}

TEST(GroupPolicies, a_step_s_own_max_norm_is_the_threshold_of_fixed_and_the_ceiling_of_the_others) {
  const std::vector<plan::PolicyOptions> kinds = {plan::FixedPolicy{}, plan::ObservePolicy{}, kMedian};
  GroupPolicies policies(plan_of({clip(plan::FixedPolicy{}, kinds, std::nullopt), clip(kMedian)}));
  for (int i = 0; i < 3; ++i) {
    step(policies, {2, 0.5});
  }
  const StepMaxNorm both{0.25, 2};
  const Step done = step(policies, {2, 2}, both);
  EXPECT_EQ(done.outcomes[0].threshold, 0.25);
  EXPECT_EQ(done.outcomes[1].threshold, 0.25);
  EXPECT_EQ(done.watched[0][0].threshold, 0.25);
  EXPECT_EQ(done.watched[0][1].threshold, kInfinity) << "observe clips by nothing";
  EXPECT_EQ(done.watched[0][2].threshold, 0.25);
  const Step first = step(policies, {2, 2}, {0.25, 1});
  EXPECT_EQ(first.outcomes[0].threshold, 0.25);
  EXPECT_EQ(first.outcomes[1].threshold, 0.5) << "not overridden";
  const Step none = step(policies, {2, 2}, {std::nullopt, 2});
  EXPECT_EQ(none.outcomes[0].threshold, kInfinity);
  EXPECT_EQ(none.outcomes[1].threshold, 0.5) << "its percentile, without a ceiling";
  EXPECT_EQ(step(policies, {2, 2}).outcomes[0].threshold, kInfinity) << "the declared one is back";
}

TEST(GroupPolicies, a_spike_of_a_fixed_policy_is_one_by_the_step_s_own_max_norm) {
  plan::ClipOptions skips = clip(plan::FixedPolicy{}, {plan::FixedPolicy{}});
  skips.spike = SpikeAction::Skip;
  GroupPolicies policies(plan_of({skips}));
  EXPECT_EQ(step(policies, {2}).outcomes[0].action, StepAction::Step);
  const Step spike = step(policies, {2}, {0.5, 1});
  EXPECT_EQ(spike.outcomes[0].action, StepAction::Skip);
  EXPECT_EQ(spike.watched[0][0].action, StepAction::Skip);
  EXPECT_EQ(step(policies, {1e9}, {std::nullopt, 1}).outcomes[0].action, StepAction::Step);
  EXPECT_EQ(step(policies, {3.5}).outcomes[0].action, StepAction::Skip);
}

TEST(GroupPolicies, a_step_s_own_max_norm_is_refused_as_a_declared_one_is) {
  plan::ClipOptions off = clip(plan::FixedPolicy{});
  off.zero_rule = plan::ZeroRule::Off;
  const GroupPolicies policies(plan_of({off, clip(kMedian)}));
  EXPECT_TRUE(policies.check({}));
  EXPECT_TRUE(policies.check({0.0, 1}));
  EXPECT_TRUE(policies.check({std::nullopt, 2}));
  for (const StepMaxNorm& bad : {StepMaxNorm{0.0, 2}, StepMaxNorm{-1.0, 1}, StepMaxNorm{kNaN, 2}}) {
    const Result<void> refused = policies.check(bad);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::InvalidParams);
    EXPECT_EQ(refused.error().path, "max_norm");
  }
}

/// One step again and again, each time with memory for one more allocation, until it is done.
void expect_all_or_nothing(GroupPolicies& policies) {
  const std::string before = saved(policies);
  const std::vector<double> norms(5, 0.125);
  std::vector<plan::ClipRule> rules;
  policies.rules({}, rules);
  std::vector<ClipOutcome> outcomes;
  for (std::size_t group = 0; group < 5; ++group) {
    outcomes.push_back(plan::apply_clip_rule(rules[group], norms[group], 1));
  }
  int failures = 0;
  for (bool failed = true; failed;) {
    PreparedStep step;
    try {
      const FailingAllocation failing(failures);
      policies.prepare({outcomes, norms}, step);
      failed = false;
    } catch (const std::bad_alloc&) {
      ASSERT_EQ(saved(policies), before) << failures;
      ++failures;
      continue;
    }
    const FailingAllocation failing(0);
    policies.commit(step);
  }
  EXPECT_GE(failures, 16) << "a reason of each watcher, at least";
  EXPECT_NE(saved(policies), before);
}

TEST(GroupPolicies, prepare_all_or_nothing_where_memory_runs_out_and_commit_without_any) {
  GroupPolicies policies(every_kind());
  expect_all_or_nothing(policies);
  step(policies, {0.5, 0.6, 0.7, 0.8, 0.9});
  GroupPolicies restored(every_kind());
  ASSERT_TRUE(restored.restore(saved(policies)));
  expect_all_or_nothing(restored);
  GroupPolicies later(every_kind());
  ASSERT_TRUE(*later.take_over(saved(policies)));
  expect_all_or_nothing(later);
  GroupPolicies moved = std::move(policies);
  expect_all_or_nothing(moved);
}

}  // namespace
}  // namespace gradsync::engine
