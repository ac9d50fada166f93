// What a clip rule does with the bound of an adaptive policy, and with the actions it was given.

#include "fakes/not_finite.hpp"
#include "plan/check/check_policy.hpp"
#include "plan/check/words.hpp"
#include "plan/clip/clip_rule.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace gradsync::plan {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

ClipBound percentile(double begin) {
  ClipBound bound;
  bound.kind = ClipBound::Kind::Percentile;
  bound.begin = begin;
  return bound;
}

ClipRule rule(std::optional<double> ceiling, double begin, ClipMode mode = ClipMode::Strict) {
  ClipRule rule;
  rule.max_norm = ceiling;
  rule.mode = mode;
  rule.bound = percentile(begin);
  return rule;
}

TEST(ClipRuleBound, clips_as_if_the_smaller_one_had_been_declared) {
  for (const ClipMode mode : {ClipMode::Strict, ClipMode::Torch}) {
    for (const double scale : {1.0, 1024.0, 3.0}) {
      for (const double norm : {0.01, 0.4, 0.7, 5.0, 1e30}) {
        ClipRule declared;
        declared.max_norm = 0.4;
        declared.mode = mode;
        const ClipOutcome expected = apply_clip_rule(declared, norm * scale, scale);
        for (const ClipRule& bounded : {rule(1, 0.4, mode), rule(std::nullopt, 0.4, mode), rule(0.4, 2, mode)}) {
          const ClipOutcome outcome = apply_clip_rule(bounded, norm * scale, scale);
          EXPECT_EQ(outcome.threshold, 0.4);
          EXPECT_EQ(outcome.coefficient, expected.coefficient);
          EXPECT_EQ(outcome.multiplier, expected.multiplier);
          EXPECT_EQ(outcome.multiply, expected.multiply);
          EXPECT_EQ(outcome.clipped, expected.clipped);
        }
      }
    }
  }
}

TEST(ClipRuleBound, of_a_score_depends_on_the_norm) {
  ClipRule scored;
  scored.max_norm = 100;
  scored.norm_dtype = DType::Float64;
  scored.bound = ClipBound{ClipBound::Kind::ZScore, 1 + 2 * (0.5 + kScoreEpsilon), 1, 0.5, 2};
  const ClipOutcome within = apply_clip_rule(scored, 1.9, 1);
  EXPECT_FALSE(within.clipped);
  EXPECT_FALSE(within.multiply);
  const ClipOutcome beyond = apply_clip_rule(scored, 9, 1);
  EXPECT_TRUE(beyond.clipped);
  EXPECT_DOUBLE_EQ(beyond.threshold, 1 + 2 * 0.5 / ((9.0 - 1) / (0.5 + kScoreEpsilon) / 2));
  EXPECT_LE(beyond.multiplier * 9, beyond.threshold);
  EXPECT_THAT(beyond.reason, StartsWith("norm 9 exceeds the z-score threshold 1.12"));
}

TEST(ClipRuleBound, of_zero_is_a_threshold_of_zero_whatever_a_declared_zero_means) {
  ClipRule zero = rule(1, 0);
  zero.zero_rule = ZeroRule::Off;
  const ClipOutcome outcome = apply_clip_rule(zero, 2, 1);
  EXPECT_TRUE(outcome.clipped);
  EXPECT_EQ(outcome.multiplier, 0);
  EXPECT_FALSE(apply_clip_rule(zero, 0, 1).multiply);
}

TEST(ClipRuleAction, leaves_gradients_alone_where_the_step_is_not_done) {
  for (const ClipMode mode : {ClipMode::Strict, ClipMode::Torch}) {
    ClipRule careful = rule(1, 0.5, mode);
    careful.nonfinite = NonfiniteAction::Skip;
    careful.spike = SpikeAction::Raise;
    careful.spike_above = 1.5;
    for (const double norm : {kNaN, kInfinity}) {
      const ClipOutcome outcome = apply_clip_rule(careful, norm, 8);
      EXPECT_EQ(outcome.action, StepAction::Skip);
      EXPECT_FALSE(outcome.multiply);
      EXPECT_EQ(outcome.multiplier, 1);
      EXPECT_FALSE(outcome.spike);
      EXPECT_THAT(outcome.reason, HasSubstr("(the step is skipped)"));
    }
    const ClipOutcome spike = apply_clip_rule(careful, 1.6 * 8, 8);
    EXPECT_EQ(spike.action, StepAction::Raise);
    EXPECT_TRUE(spike.spike);
    EXPECT_FALSE(spike.multiply);
    EXPECT_TRUE(spike.clipped);
    EXPECT_EQ(spike.coefficient, 1);
    const ClipOutcome usual = apply_clip_rule(careful, 1.5 * 8, 8);
    EXPECT_EQ(usual.action, StepAction::Step);
    EXPECT_FALSE(usual.spike);
  }
}

TEST(ClipRuleAction, zero_is_said_and_not_multiplied) {
  ClipRule zeroing = rule(1, 0.5);
  zeroing.nonfinite = NonfiniteAction::Zero;
  const ClipOutcome outcome = apply_clip_rule(zeroing, kNaN, 1);
  EXPECT_EQ(outcome.action, StepAction::Zero);
  EXPECT_FALSE(outcome.multiply) << "NaN times 0 is NaN";
  EXPECT_EQ(outcome.coefficient, 0);
}

TEST(ClipRuleAction, of_one_group_decides_for_all) {
  ClipRule careful = rule(1, 0.5);
  careful.nonfinite = NonfiniteAction::Skip;
  ClipRule strict = rule(1, 0.5);
  strict.nonfinite = NonfiniteAction::Raise;
  std::vector<ClipOutcome> outcomes{
      apply_clip_rule(rule(1, 0.5), 3, 4), apply_clip_rule(careful, kNaN, 4), apply_clip_rule(rule(1, 0.5), 0.1, 4)};
  decide_together(outcomes);
  for (const ClipOutcome& outcome : outcomes) {
    EXPECT_EQ(outcome.action, StepAction::Skip);
    EXPECT_FALSE(outcome.multiply) << "no gradient is unscaled where none is used";
    EXPECT_THAT(outcome.reason, StartsWith("norm is not finite"));
    EXPECT_EQ(outcome.decides, &outcome == &outcomes[1]);
  }
  outcomes.push_back(apply_clip_rule(strict, kInfinity, 4));
  decide_together(outcomes);
  for (const ClipOutcome& outcome : outcomes) {
    EXPECT_EQ(outcome.action, StepAction::Raise);
    EXPECT_THAT(outcome.reason, HasSubstr("an error is raised"));
    EXPECT_EQ(outcome.decides, &outcome == &outcomes[3]);
  }

  std::vector<ClipOutcome> usual{apply_clip_rule(rule(1, 0.5), 3, 4), apply_clip_rule(rule(1, 0.5), 0.1, 4)};
  const ClipOutcome before = usual.front();
  decide_together(usual);
  EXPECT_EQ(usual.front().multiplier, before.multiplier);
  EXPECT_TRUE(usual.front().clipped);
  EXPECT_FALSE(usual.front().decides);
  decide_together({});
}

struct Refusal {
  PolicyOptions policy;
  const char* field;
};

TEST(CheckPolicy, names_the_field_and_the_value) {
  const Refusal refusals[] = {
      {PercentilePolicy{0, 10, 3}, "percentile"},
      {PercentilePolicy{-5, 10, 3}, "percentile"},
      {PercentilePolicy{100.5, 10, 3}, "percentile"},
      {PercentilePolicy{kNaN, 10, 3}, "percentile"},
      {PercentilePolicy{95, 0, 3}, "window"},
      {PercentilePolicy{95, kMaxWindow + 1, 3}, "window"},
      {PercentilePolicy{95, 10, 11}, "warmup"},
      {PercentilePolicy{95, 10, 0}, "warmup"},
      {AutoPolicy{{0, 10, 3}}, "percentile"},
      {AutoPolicy{{95, 10, 11}}, "warmup"},
      {ZScorePolicy{0, 0.97, 25}, "z"},
      {ZScorePolicy{kInfinity, 0.97, 25}, "z"},
      {ZScorePolicy{2.5, 1, 25}, "alpha"},
      {ZScorePolicy{2.5, 0, 25}, "alpha"},
      {ZScorePolicy{2.5, kNaN, 25}, "alpha"},
      {ZScorePolicy{2.5, 0.97, 1}, "warmup"}};
  for (const Refusal& refusal : refusals) {
    const Result<void> checked = check_policy(refusal.policy, "clip.policy");
    ASSERT_TRUE(checked.has_error()) << words_of(refusal.policy);
    EXPECT_EQ(checked.error().path, std::string("clip.policy.") + refusal.field);
    EXPECT_THAT(checked.error().message, StartsWith(std::string(refusal.field) + " is "));
    EXPECT_FALSE(checked.error().hint.empty());
  }
  for (const PolicyOptions& policy :
       {PolicyOptions{FixedPolicy{}},
        PolicyOptions{ObservePolicy{}},
        PolicyOptions{PercentilePolicy{}},
        PolicyOptions{PercentilePolicy{100, 1, 1}},
        PolicyOptions{ZScorePolicy{}},
        PolicyOptions{AutoPolicy{}}}) {
    EXPECT_TRUE(check_policy(policy, "clip.policy")) << words_of(policy);
  }
}

TEST(CheckPolicy, looks_at_those_that_watch_and_at_the_spike) {
  ClipOptions clip;
  clip.watch.assign(8, ZScorePolicy{});
  EXPECT_TRUE(check_policies(clip, "clip"));
  clip.watch[7] = ZScorePolicy{-1, 0.97, 25};
  EXPECT_EQ(check_policies(clip, "clip").error().path, "clip.watch[7].z");
  clip.watch.assign(9, ZScorePolicy{});
  EXPECT_EQ(check_policies(clip, "clip").error().path, "clip.watch");
  clip.watch.clear();
  for (const double factor : {1.0, 0.0, -3.0, kNaN, kInfinity}) {
    clip.spike_factor = factor;
    EXPECT_EQ(check_policies(clip, "clip").error().path, "clip.spike_factor");
  }
}

TEST(CheckPolicy, adds_up_what_is_remembered) {
  ClipOptions clip;
  clip.policy = PercentilePolicy{95, 1000, 100};
  clip.watch = {ZScorePolicy{2.5, 0.97, 25}, ObservePolicy{}, PercentilePolicy{90, 500, 100}, AutoPolicy{{90, 70, 7}}};
  EXPECT_EQ(remembered_norms(clip), 1595);
}

TEST(ClipWords, say_what_is_not_as_by_default) {
  ClipOptions clip;
  EXPECT_EQ(words_of(clip), "max_norm none, zero_rule refuse");
  clip.max_norm = 1;
  clip.policy = PercentilePolicy{};
  clip.nonfinite = NonfiniteAction::Zero;
  clip.spike = SpikeAction::Skip;
  clip.watch = {ZScorePolicy{}, ObservePolicy{}};
  EXPECT_EQ(
      words_of(clip),
      "max_norm 1, zero_rule refuse, policy percentile 95, window 1000, warmup 100, nonfinite zero, spike skip above "
      "3, "
      "watched by zscore 2.5, alpha 0.97, warmup 25, watched by observe"
  );
}

TEST(ClipWords, tell_auto_from_the_percentile_with_its_numbers) {
  EXPECT_EQ(words_of(PolicyOptions(AutoPolicy{{90, 500, 50}})), "auto 90, window 500, warmup 50");
  EXPECT_NE(PolicyOptions(AutoPolicy{}), PolicyOptions(PercentilePolicy{}));
}

TEST(ClipPolicies, what_a_norm_that_is_not_finite_does_goes_before_what_a_spike_does) {
  ClipRule skips;
  skips.nonfinite = NonfiniteAction::Skip;
  ClipRule raises;
  raises.max_norm = 1;
  raises.spike = SpikeAction::Raise;
  raises.spike_above = 3;
  std::vector<ClipOutcome> outcomes{
      apply_clip_rule(raises, 100, 1), apply_clip_rule(skips, std::numeric_limits<double>::infinity(), 1)};
  ASSERT_EQ(outcomes[0].action, StepAction::Raise);
  const std::string reason = outcomes[1].reason;
  decide_together(outcomes);
  for (const ClipOutcome& outcome : outcomes) {
    EXPECT_EQ(outcome.action, StepAction::Skip);
    EXPECT_EQ(outcome.reason, reason);
  }
}

}  // namespace
}  // namespace gradsync::plan
