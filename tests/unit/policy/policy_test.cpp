#include "policy/policy.hpp"

#include "fakes/not_finite.hpp"
#include "policy/norm_window.hpp"
#include "policy/state_bytes.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>

namespace gradsync::policy {
namespace {

using plan::ClipBound;
using plan::ClipOptions;
using plan::ClipOutcome;
using plan::StepAction;
using ::testing::HasSubstr;

ClipOptions percentile(std::int64_t window = 10, std::int64_t warmup = 3, double value = 50) {
  ClipOptions clip;
  clip.max_norm = 1;
  clip.policy = plan::PercentilePolicy{value, window, warmup};
  return clip;
}

Policy made(const ClipOptions& clip) { return {clip, plan::ClipMode::Strict, plan::DType::Float64}; }

/// One step of one group.
ClipOutcome step(Policy& policy, double norm) {
  ClipOutcome outcome = plan::apply_clip_rule(policy.rule(), norm, 1);
  policy.record(outcome);
  return outcome;
}

std::string state_of(const Policy& policy) {
  std::string bytes;
  policy.save(bytes);
  return bytes;
}

TEST(Policy, percentile_clips_by_the_norms_before_this_one_and_by_the_ceiling_until_warm) {
  Policy policy = made(percentile());
  EXPECT_EQ(step(policy, 0.5).threshold, 1);
  EXPECT_EQ(step(policy, 4).threshold, 1);
  EXPECT_EQ(step(policy, 0.25).threshold, 1);
  const ClipOutcome warm = step(policy, 0.75);  // the median of 0.5, 4 and 0.25: norms as they were before clipping
  EXPECT_EQ(warm.threshold, 0.5);
  EXPECT_TRUE(warm.clipped);
  EXPECT_THAT(warm.reason, HasSubstr("exceeds the percentile 0.5"));
  EXPECT_EQ(step(policy, 0.1).threshold, 0.625);
}

TEST(Policy, percentile_never_exceeds_the_ceiling) {
  Policy policy = made(percentile());
  for (const double norm : {7.0, 8.0, 9.0}) {
    step(policy, norm);
  }
  const ClipOutcome outcome = step(policy, 8);
  EXPECT_EQ(outcome.threshold, 1);
  EXPECT_THAT(outcome.reason, HasSubstr("max_norm 1"));
}

TEST(Policy, without_a_ceiling_nothing_is_clipped_before_warm_up) {
  ClipOptions clip = percentile();
  clip.max_norm.reset();
  Policy policy = made(clip);
  for (const double norm : {7.0, 8.0, 9.0}) {
    EXPECT_EQ(step(policy, norm).threshold, kInfinity);
  }
  EXPECT_EQ(step(policy, 10).threshold, 8);
}

TEST(Policy, has_the_thresholds_of_the_plain_algorithm_over_five_thousand_norms) {
  std::mt19937_64 random(3);
  std::lognormal_distribution<double> norms(-1.2, 0.5);
  Policy policy = made(percentile(1000, 100, 95));
  std::vector<double> history;
  std::size_t clipped = 0;
  for (int i = 0; i < 5000; ++i) {
    const double norm = norms(random) * (i > 2500 ? 0.5 : 1) * (i % 97 == 0 ? 10 : 1);
    double threshold = 1;
    if (history.size() >= 100) {
      NormWindow window(1000);
      for (const double past : history) {
        window.push(past);
      }
      threshold = std::min(threshold, window.percentile(95));
    }
    const ClipOutcome outcome = step(policy, norm);
    ASSERT_EQ(outcome.threshold, threshold) << i;
    clipped += outcome.clipped ? 1 : 0;
    history.push_back(norm);
    if (history.size() > 1000) {
      history.erase(history.begin());
    }
  }
  EXPECT_GT(clipped, 100U);
}

TEST(Policy, non_finite_and_skipped_norms_leave_the_history_alone) {
  for (const plan::NonfiniteAction action :
       {plan::NonfiniteAction::Propagate,
        plan::NonfiniteAction::Skip,
        plan::NonfiniteAction::Zero,
        plan::NonfiniteAction::Raise}) {
    ClipOptions clip = percentile();
    clip.nonfinite = action;
    Policy policy = made(clip);
    for (const double norm : {0.5, 0.6, 0.7}) {
      step(policy, norm);
    }
    const std::string before = state_of(policy);
    step(policy, kNaN);
    step(policy, kInfinity);
    EXPECT_EQ(state_of(policy), before);
  }
}

TEST(Policy, skips_a_spike_and_after_five_in_a_row_believes_it) {
  ClipOptions clip = percentile();
  clip.spike = plan::SpikeAction::Skip;
  Policy policy = made(clip);
  EXPECT_EQ(step(policy, 100).action, StepAction::Step) << "before warm-up nothing is a spike";
  step(policy, 0.5);
  step(policy, 0.5);
  for (int i = 0; i < 5; ++i) {
    const ClipOutcome spike = step(policy, 1.6);
    EXPECT_EQ(spike.action, StepAction::Skip) << i;
    EXPECT_TRUE(spike.clipped) << "its norm is above the threshold";
    EXPECT_FALSE(spike.multiply);
    EXPECT_THAT(spike.reason, HasSubstr("is a spike, above 1.5 (the step is skipped)"));
  }
  const ClipOutcome believed = step(policy, 1.6);
  EXPECT_EQ(believed.action, StepAction::Step);
  EXPECT_TRUE(believed.spike);
  EXPECT_TRUE(believed.clipped);
  EXPECT_EQ(step(policy, 1.6).action, StepAction::Step) << "the median of 100, 0.5, 0.5, 1.6 is above 1.6 / 3";
}

TEST(Policy, clips_spikes_after_five_skips_until_a_norm_is_none) {
  ClipOptions clip;
  clip.max_norm = 100;
  clip.policy = plan::ZScorePolicy{2.5, 0.97, 10};
  clip.spike = plan::SpikeAction::Skip;
  Policy policy = made(clip);
  for (int i = 0; i < 50; ++i) {
    step(policy, i % 2 == 0 ? 0.9 : 1.1);
  }
  int skipped = 0;
  for (int i = 0; i < 1000; ++i) {  // the level has risen for good
    skipped += step(policy, i % 2 == 0 ? 4.5 : 5.5).action == StepAction::Skip ? 1 : 0;
  }
  EXPECT_EQ(skipped, 5);
}

TEST(Policy, counts_no_skip_that_its_own_rule_did_not_want) {
  for (const plan::SpikeAction action : {plan::SpikeAction::Skip, plan::SpikeAction::Clip}) {
    ClipOptions clip = percentile();
    clip.spike = action;
    Policy policy = made(clip);
    for (const double norm : {0.5, 0.5, 0.5}) {
      step(policy, norm);
    }
    for (int i = 0; i < 20; ++i) {
      ClipOutcome outcomes[2] = {plan::apply_clip_rule(policy.rule(), 9, 1)};
      outcomes[1].action = StepAction::Skip;
      plan::decide_together(outcomes);
      policy.record(outcomes[0]);
      Policy resumed = made(clip);
      ASSERT_TRUE(resumed.restore(state_of(policy))) << i;
    }
    EXPECT_EQ(step(policy, 9).action, StepAction::Step);
  }
}

TEST(Policy, has_no_threshold_of_zero) {
  for (const plan::PolicyOptions& kind :
       {plan::PolicyOptions{plan::PercentilePolicy{95, 10, 3}},
        plan::PolicyOptions{plan::ZScorePolicy{2.5, 0.97, 3}}}) {
    ClipOptions clip;
    clip.max_norm = 1;
    clip.policy = kind;
    Policy policy = made(clip);
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(step(policy, 0).threshold, 1) << "a group that took no part yet";
    }
    for (int i = 0; i < 20; ++i) {
      EXPECT_GT(step(policy, 0.5).coefficient, 0) << i;
    }
  }
}

ClipOptions automatic(std::int64_t window = 10, std::int64_t warmup = 3, double value = 50) {
  ClipOptions clip;
  clip.max_norm = 1;
  clip.policy = plan::AutoPolicy{{value, window, warmup}};
  return clip;
}

/// The source's words: min(grad_clip_norm, percentile(grad_norm_history, 95)), by the definition of numpy.percentile
/// and that of Python's min.
double effective_clip(const std::vector<double>& history, std::size_t warmup) {
  if (history.size() < warmup || std::any_of(history.begin(), history.end(), [](double x) { return std::isnan(x); })) {
    return 1;
  }
  std::vector<double> sorted = history;
  std::sort(sorted.begin(), sorted.end());
  const double place = static_cast<double>(sorted.size() - 1) * 0.95;
  const auto below = static_cast<std::size_t>(place);
  const double share = place - static_cast<double>(below);
  const double low = sorted[below];
  const double high = sorted[std::min(below + 1, sorted.size() - 1)];
  const double percentile = share >= 0.5 ? high - (high - low) * (1 - share) : low + (high - low) * share;
  return percentile < 1 ? percentile : 1;
}

TEST(Policy, auto_has_the_thresholds_of_its_source_whatever_norms_come_and_whatever_becomes_of_the_steps) {
  for (const char* kind : {"finite", "broken", "zeros", "skipped"}) {
    ClipOptions clip = automatic(40, 10, 95);
    if (kind == std::string("skipped")) {
      clip.nonfinite = plan::NonfiniteAction::Skip;
      clip.spike = plan::SpikeAction::Skip;
    }
    Policy policy = made(clip);
    std::mt19937_64 random(17);
    std::lognormal_distribution<double> norms(-1.5, 0.8);
    std::vector<double> history;
    std::size_t adapted = 0;
    std::size_t zeros = 0;
    for (int i = 0; i < 3000; ++i) {
      double norm = norms(random);
      if (kind != std::string("finite") && i % 97 == 60) {
        norm = i % 2 == 0 ? kNaN : kInfinity;
      }
      if (kind == std::string("zeros") && i % 45 != 0) {
        norm = 0;
      }
      const double expected = effective_clip(history, 10);
      ASSERT_EQ(step(policy, norm).threshold, expected) << kind << " " << i;
      adapted += expected < 1 ? 1 : 0;
      zeros += expected == 0 ? 1 : 0;
      history.push_back(norm);
      if (history.size() > 40) {
        history.erase(history.begin());
      }
    }
    EXPECT_GT(adapted, 500U) << kind;
    EXPECT_EQ(zeros > 0, kind == std::string("zeros"));
  }
}

TEST(Policy, auto_takes_a_percentile_of_zero_for_a_threshold_and_calls_no_norm_a_spike_by_it) {
  ClipOptions clip = automatic();
  clip.spike = plan::SpikeAction::Raise;
  Policy policy = made(clip);
  for (int i = 0; i < 5; ++i) {
    step(policy, 0);
  }
  const ClipOutcome outcome = step(policy, 0.5);
  EXPECT_EQ(outcome.threshold, 0);
  EXPECT_EQ(outcome.coefficient, 0);
  EXPECT_TRUE(outcome.clipped);
  EXPECT_EQ(outcome.action, StepAction::Step);
}

TEST(Policy, auto_saves_norms_that_are_not_finite_alike_whatever_made_them) {
  Policy one = made(automatic());
  Policy other = made(automatic());
  step(one, kNaN);
  step(other, std::bit_cast<double>(std::bit_cast<std::uint64_t>(kNaN) | 0x8000000000000123U));
  EXPECT_EQ(state_of(one), state_of(other));
}

TEST(Policy, auto_takes_back_what_it_saves_and_nothing_else) {
  const std::string settings = "auto 50, window 10, warmup 3, norm_type 2";
  Policy policy = made(automatic());
  const std::string before = state_of(policy);
  const auto restored = [&](double norm) {
    std::string bytes;
    write_state({settings, {0, norm}}, bytes);
    return policy.restore(bytes);
  };
  for (const double norm : {-1.0, -kInfinity, -std::abs(kNaN)}) {
    const Result<void> refused = restored(norm);
    ASSERT_TRUE(refused.has_error()) << norm;
    EXPECT_THAT(refused.error().message, HasSubstr("a number >= 0 or NaN is expected"));
    EXPECT_EQ(state_of(policy), before);
  }
  for (const double norm : {0.0, kInfinity, std::abs(kNaN)}) {
    EXPECT_TRUE(restored(norm)) << norm;
  }
}

TEST(Policy, a_step_that_another_group_skipped_is_not_recorded) {
  Policy policy = made(percentile());
  const std::string before = state_of(policy);
  ClipOutcome outcomes[2];
  outcomes[0] = plan::apply_clip_rule(policy.rule(), 2, 1);
  outcomes[1].action = StepAction::Skip;
  outcomes[1].reason = "the other group's";
  plan::decide_together(outcomes);
  EXPECT_EQ(outcomes[0].action, StepAction::Skip);
  EXPECT_FALSE(outcomes[0].multiply);
  EXPECT_EQ(outcomes[0].reason, "the other group's");
  policy.record(outcomes[0]);
  EXPECT_EQ(state_of(policy), before);
}

TEST(Policy, observe_never_clips_and_fixed_spikes_by_its_max_norm) {
  ClipOptions clip = percentile();
  clip.policy = plan::ObservePolicy{};
  Policy observing = made(clip);
  EXPECT_EQ(step(observing, 100).threshold, kInfinity);
  clip.policy = plan::FixedPolicy{};
  clip.spike = plan::SpikeAction::Raise;
  Policy fixed = made(clip);
  EXPECT_TRUE(step(fixed, 2).clipped);
  EXPECT_EQ(step(fixed, 3.5).action, StepAction::Raise);
}

class EachPolicy : public testing::TestWithParam<plan::PolicyOptions> {};

TEST_P(EachPolicy, continues_from_its_state_bit_for_bit) {
  ClipOptions clip;
  clip.max_norm = 1;
  clip.policy = GetParam();
  clip.spike = plan::SpikeAction::Skip;
  std::mt19937_64 random(5);
  std::lognormal_distribution<double> norms(-1, 1.5);
  for (const int stop : {0, 3, 10, 57}) {
    Policy whole = made(clip);
    for (int i = 0; i < stop; ++i) {
      step(whole, norms(random));
    }
    Policy resumed = made(clip);
    ASSERT_TRUE(resumed.restore(state_of(whole)));
    for (int i = 0; i < 50; ++i) {
      const double norm = i % 13 == 0 ? kNaN : norms(random);
      const ClipOutcome a = step(whole, norm);
      const ClipOutcome b = step(resumed, norm);
      ASSERT_EQ(a.threshold, b.threshold);
      ASSERT_EQ(a.action, b.action);
      ASSERT_EQ(state_of(whole), state_of(resumed));
    }
  }
}

TEST_P(EachPolicy, refuses_the_state_of_another) {
  ClipOptions clip;
  clip.policy = GetParam();
  Policy policy = made(clip);
  const std::string own = state_of(policy);
  const plan::PolicyOptions others[] = {
      plan::FixedPolicy{},
      plan::ObservePolicy{},
      plan::PercentilePolicy{95, 10, 3},
      plan::PercentilePolicy{95, 11, 3},
      plan::PercentilePolicy{94, 10, 3},
      plan::ZScorePolicy{2.5, 0.97, 5},
      plan::ZScorePolicy{2.5, 0.98, 5},
      plan::AutoPolicy{{95, 10, 3}},
      plan::AutoPolicy{{95, 11, 3}}};
  for (const plan::PolicyOptions& other : others) {
    ClipOptions other_clip;
    other_clip.policy = other;
    const Result<void> restored = policy.restore(state_of(made(other_clip)));
    EXPECT_EQ(restored.has_value(), other == GetParam());
    if (!restored) {
      EXPECT_EQ(restored.error().path, "state");
      EXPECT_THAT(restored.error().message, HasSubstr("the state is of policy"));
    }
    EXPECT_EQ(state_of(policy), own);
  }
}

TEST(Policy, refuses_the_state_of_norms_of_another_type) {
  Policy euclidean = made(percentile());
  Policy largest(percentile(), plan::ClipMode::Strict, plan::DType::Float64, kInfinity);
  const Result<void> restored = largest.restore(state_of(euclidean));
  ASSERT_TRUE(restored.has_error());
  EXPECT_THAT(restored.error().message, HasSubstr("norm_type 2"));
  EXPECT_THAT(restored.error().message, HasSubstr("norm_type inf"));
}

INSTANTIATE_TEST_SUITE_P(
    Policies,
    EachPolicy,
    testing::Values(
        plan::FixedPolicy{},
        plan::ObservePolicy{},
        plan::PercentilePolicy{95, 10, 3},
        plan::ZScorePolicy{2.5, 0.97, 5},
        plan::AutoPolicy{{95, 10, 3}}
    )
);

}  // namespace
}  // namespace gradsync::policy
