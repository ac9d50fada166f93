#include "policy/health.hpp"

#include "policy/policy.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace gradsync::policy {
namespace {

using ::testing::HasSubstr;

/// A clip group, and all signs that began or ended in it.
struct Watched {
  explicit Watched(const plan::PolicyOptions& options, std::optional<double> max_norm = std::nullopt)
      : policy(clip(options, max_norm), plan::ClipMode::Strict, plan::DType::Float64), health(options) {}

  static plan::ClipOptions clip(const plan::PolicyOptions& options, std::optional<double> max_norm) {
    plan::ClipOptions clip;
    clip.policy = options;
    clip.max_norm = max_norm;
    return clip;
  }

  void step(double norm) {
    const plan::ClipRule rule = policy.rule();
    const plan::ClipOutcome outcome = plan::apply_clip_rule(rule, norm, 1);
    ClipStep step{.norm = outcome.norm, .threshold = outcome.threshold, .clipped = outcome.clipped};
    if (rule.bound.kind != plan::ClipBound::Kind::None) {
      step.own = rule.bound.begin;
    }
    step.ceiling = rule.max_norm.value_or(step.ceiling);
    const Health::Changes changes = health.observe(step);
    policy.record(outcome);
    began += changes.began.count();
    ended += changes.ended.count();
  }

  template <typename Norms>
  void steps(std::size_t count, Norms&& norms) {
    for (std::size_t i = 0; i < count; ++i) {
      step(norms());
    }
  }

  Policy policy;
  Health health;
  std::size_t began = 0;
  std::size_t ended = 0;
};

/// Norms whose logarithms have this mean and a deviation of 0.5; those of neighbouring steps correlate.
class Noise {
 public:
  explicit Noise(std::uint64_t seed, double correlation = 0) : random_(seed), correlation_(correlation) {}

  double operator()() {
    state_ = correlation_ * state_ + std::sqrt(1 - correlation_ * correlation_) * normal_(random_);
    return std::exp(mean + 0.5 * state_);
  }

  double mean = 0;

 private:
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
  double correlation_;
  double state_ = 0;
};

const plan::PercentilePolicy kPercentile;
const plan::PercentilePolicy kShort{95, 100, 10};

TEST(Health, steady_norms_show_no_sign) {
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    for (const double correlation : {0.0, 0.5, 0.9}) {
      for (const plan::PolicyOptions& options : std::initializer_list<plan::PolicyOptions>{
               kPercentile, plan::ZScorePolicy{}, plan::FixedPolicy{}, plan::AutoPolicy{}}) {
        Watched watched(options, 4.0);
        watched.steps(100'000, Noise(seed, correlation));
        EXPECT_EQ(watched.began, 0u) << seed << " " << correlation << " " << options.index();
        EXPECT_EQ(watched.health.window().steps, 1000);
      }
    }
  }
}

TEST(Health, norms_that_outrun_the_window_are_clipped_too_often_until_they_stay) {
  Watched watched(kPercentile);
  Noise noise(4);
  watched.steps(3000, [&] { return noise(); });
  EXPECT_EQ(watched.began, 0u);
  watched.steps(1000, [&] { return noise.mean += 0.002, noise(); });  // seven times as large at the end
  EXPECT_TRUE(watched.health.has(Sign::ClipRate));
  EXPECT_THAT(watched.health.words(Sign::ClipRate), HasSubstr("% of 1000 steps were clipped by the percentile, 5."));
  EXPECT_THAT(watched.health.words(Sign::ClipRate), HasSubstr("norms rise"));
  watched.steps(3000, [&] { return noise(); });
  EXPECT_FALSE(watched.health.has(Sign::ClipRate));
  EXPECT_EQ(watched.began, watched.ended);
}

TEST(Health, norms_that_fall_are_clipped_too_rarely) {
  for (const plan::PolicyOptions& options :
       std::initializer_list<plan::PolicyOptions>{kPercentile, plan::AutoPolicy{}}) {
    Watched watched(options);
    Noise noise(5);
    watched.steps(2000, [&] { return noise(); });
    watched.steps(1000, [&] { return noise.mean -= 0.002, noise(); });
    EXPECT_TRUE(watched.health.has(Sign::ClipRate));
    EXPECT_THAT(watched.health.words(Sign::ClipRate), HasSubstr("norms fall"));
    EXPECT_FALSE(watched.health.has(Sign::ThresholdCollapsing)) << "a seventh, as in the beginning of many runs";
  }
}

TEST(Health, a_threshold_of_zero_has_collapsed) {
  Watched watched(plan::AutoPolicy{{95, 100, 10}});
  watched.steps(200, Noise(5));
  EXPECT_EQ(watched.began, 0u);
  watched.steps(100, [] { return 0.0; });
  EXPECT_TRUE(watched.health.has(Sign::ThresholdCollapsing));
}

TEST(Health, a_rate_above_that_of_the_percentile_is_usual_where_the_ceiling_decides) {
  Watched watched(kPercentile, 0.8);
  watched.steps(900, Noise(6));
  EXPECT_FALSE(watched.health.has(Sign::ClipRate));
  watched.steps(2000, Noise(6));
  EXPECT_FALSE(watched.health.has(Sign::ClipRate));
}

/// The sign after a window in which every step for which `clips` holds is clipped by the percentile.
template <typename Clips>
bool far_after(Clips&& clips) {
  Health health{plan::PolicyOptions(kPercentile)};
  for (int step = 0; step < 1000; ++step) {
    (void)health.observe({.norm = 1, .threshold = 1, .own = 1, .clipped = clips(step)});
  }
  return health.has(Sign::ClipRate);
}

TEST(Health, a_tenth_of_the_steps_is_far_from_5_per_cent_unless_clips_come_together) {
  EXPECT_TRUE(far_after([](int step) { return step % 10 == 0; }));
  EXPECT_FALSE(far_after([](int step) { return step >= 300 && step < 400; }));
  EXPECT_FALSE(far_after([](int step) { return step % 20 == 0; }));
  EXPECT_TRUE(far_after([](int) { return true; }));
  EXPECT_TRUE(far_after([](int) { return false; }));
}

TEST(Health, a_threshold_that_falls_to_less_than_a_tenth_collapses) {
  Watched watched(kShort);
  Noise noise(8);
  watched.steps(300, [&] { return noise(); });
  noise.mean = -4;
  watched.steps(100, [&] { return noise(); });
  EXPECT_TRUE(watched.health.has(Sign::ThresholdCollapsing));
  EXPECT_THAT(watched.health.words(Sign::ThresholdCollapsing), HasSubstr("gradients vanish"));
  watched.steps(100, [&] { return noise(); });
  EXPECT_FALSE(watched.health.has(Sign::ThresholdCollapsing));
  EXPECT_THAT(watched.health.words(Sign::ThresholdCollapsing), HasSubstr("in 100 steps"));
}

TEST(Health, a_percentile_above_the_ceiling_for_a_whole_window_is_a_sign_until_one_step_is_below) {
  Watched watched(kShort, 0.1);
  watched.steps(110, Noise(9));
  EXPECT_FALSE(watched.health.has(Sign::AtCeiling)) << "before the warm-up there is nothing else";
  watched.steps(90, Noise(9));
  EXPECT_TRUE(watched.health.has(Sign::AtCeiling));
  EXPECT_THAT(watched.health.words(Sign::AtCeiling), HasSubstr("max_norm decided in 100 of 100 steps"));
  watched.steps(100, [] { return 0.01; });
  EXPECT_FALSE(watched.health.has(Sign::AtCeiling));
}

TEST(Health, a_fixed_policy_that_clips_every_step_is_at_its_ceiling) {
  Watched watched(plan::FixedPolicy{}, 1.0);
  watched.steps(999, [] { return 2.0; });
  EXPECT_FALSE(watched.health.has(Sign::AtCeiling));
  watched.step(2);
  EXPECT_TRUE(watched.health.has(Sign::AtCeiling));
  watched.steps(999, [] { return 2.0; });
  watched.step(0.5);
  EXPECT_FALSE(watched.health.has(Sign::AtCeiling));
  EXPECT_THAT(watched.health.words(Sign::AtCeiling), HasSubstr("999 of 1000 steps, and 99.9 % were clipped"));
}

TEST(Health, norms_rise_in_three_windows_and_double_in_any_policy) {
  for (const plan::PolicyOptions& options :
       std::initializer_list<plan::PolicyOptions>{plan::FixedPolicy{}, plan::ObservePolicy{}, kPercentile}) {
    Watched watched(options);
    Noise noise(10);
    watched.steps(3000, [&] { return noise(); });
    watched.steps(2000, [&] { return noise.mean += 0.0004, noise(); });
    EXPECT_FALSE(watched.health.has(Sign::NormsRising)) << "two windows";
    watched.steps(1000, [&] { return noise.mean += 0.0004, noise(); });
    EXPECT_TRUE(watched.health.has(Sign::NormsRising));
    EXPECT_THAT(watched.health.words(Sign::NormsRising), HasSubstr("rose in "));
    noise.mean -= 0.5;
    watched.steps(1000, [&] { return noise(); });
    EXPECT_FALSE(watched.health.has(Sign::NormsRising));
  }
}

TEST(Health, slow_growth_is_no_sign_and_one_huge_norm_in_each_window_neither) {
  Watched watched(plan::FixedPolicy{});
  Noise noise(11);
  watched.steps(30'000, [&] { return noise.mean += 0.00005, noise(); });
  EXPECT_FALSE(watched.health.has(Sign::NormsRising));
  noise.mean = 0;
  for (const double huge : {1e6, 1e9, 1e12, 1e15}) {
    watched.step(huge);
    watched.steps(999, [&] { return noise(); });
  }
  EXPECT_FALSE(watched.health.has(Sign::NormsRising));
}

TEST(Health, norms_that_are_not_finite_are_not_counted_and_norms_of_zero_have_no_mean) {
  Watched watched(plan::FixedPolicy{}, 1.0);
  watched.steps(500, [] { return std::numeric_limits<double>::infinity(); });
  EXPECT_EQ(watched.health.window().steps, 0);
  watched.steps(5000, [] { return 0.0; });
  EXPECT_EQ(watched.began, 0u);
  EXPECT_EQ(watched.health.window().norms, 0);
}

TEST(Health, the_window_is_that_of_the_percentile_within_limits) {
  for (const auto& [declared, steps] : {std::pair{10, 100}, std::pair{300, 300}, std::pair{50'000, 1000}}) {
    Watched watched(plan::PercentilePolicy{95, declared, 10});
    watched.steps(static_cast<std::size_t>(steps), Noise(12));
    EXPECT_EQ(watched.health.window().steps, steps);
    watched.steps(1, Noise(12));
    EXPECT_EQ(watched.health.window().steps, steps) << "that of the last whole window";
    EXPECT_LT(watched.health.window().lowest, watched.health.window().highest);
  }
}

}  // namespace
}  // namespace gradsync::policy
