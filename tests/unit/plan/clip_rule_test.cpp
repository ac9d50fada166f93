#include "plan/clip/clip_rule.hpp"

#include "fakes/not_finite.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <tuple>

namespace gradsync::plan {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

struct TorchRow {
  DType dtype;
  std::uint64_t norm;
  std::uint64_t max_norm;
  std::uint64_t multiplier;
};

constexpr TorchRow kTorchTable[] = {
#include "torch_clip_table.inc"
};

ClipRule strict(std::optional<double> max_norm, DType dtype = DType::Float32) {
  return {max_norm, ClipMode::Strict, ZeroRule::Refuse, dtype};
}

ClipRule torch(std::optional<double> max_norm, DType dtype = DType::Float32) {
  return {max_norm, ClipMode::Torch, ZeroRule::Refuse, dtype};
}

ClipRule with(ClipRule rule, ZeroRule zero_rule) {
  rule.zero_rule = zero_rule;
  return rule;
}

TEST(ClipRule, torch_mode_has_the_bits_of_torch) {
  for (const TorchRow& row : kTorchTable) {
    const double norm = std::bit_cast<double>(row.norm);
    const double max_norm = std::bit_cast<double>(row.max_norm);
    const ClipOutcome outcome = apply_clip_rule(with(torch(max_norm, row.dtype), ZeroRule::Zero), norm, 1);
    EXPECT_EQ(std::bit_cast<std::uint64_t>(outcome.multiplier), row.multiplier) << norm << " " << max_norm;
    EXPECT_EQ(outcome.coefficient, outcome.multiplier);
    EXPECT_TRUE(outcome.multiply);
    EXPECT_EQ(outcome.clipped, norm > max_norm);
  }
}

TEST(ClipRule, torch_mode_lets_a_nan_norm_through) {
  const ClipOutcome outcome = apply_clip_rule(torch(1), kNaN, 1);
  EXPECT_TRUE(std::isnan(outcome.multiplier));
  EXPECT_TRUE(outcome.multiply);
  EXPECT_FALSE(outcome.clipped);
  EXPECT_THAT(outcome.reason, StartsWith("norm is not finite: nan"));
}

TEST(ClipRule, torch_mode_multiplies_by_0_for_an_infinite_norm) {
  const ClipOutcome outcome = apply_clip_rule(torch(1), kInfinity, 1);
  EXPECT_EQ(outcome.multiplier, 0);
  EXPECT_THAT(outcome.reason, StartsWith("norm is not finite: inf"));
}

TEST(ClipRule, strict_mode_leaves_gradients_within_max_norm_alone) {
  for (const double norm : {0.0, 0.5, 1.0}) {
    const ClipOutcome outcome = apply_clip_rule(strict(1), norm, 1);
    EXPECT_FALSE(outcome.multiply) << norm;
    EXPECT_FALSE(outcome.clipped) << norm;
    EXPECT_EQ(outcome.coefficient, 1) << norm;
    EXPECT_EQ(outcome.multiplier, 1) << norm;
  }
  EXPECT_EQ(apply_clip_rule(strict(1), 0.5, 1).reason, "norm 0.5 is within max_norm 1");
}

TEST(ClipRule, strict_mode_divides_max_norm_by_the_norm) {
  const ClipOutcome outcome = apply_clip_rule(strict(1), 4, 1);
  EXPECT_TRUE(outcome.multiply);
  EXPECT_TRUE(outcome.clipped);
  EXPECT_EQ(outcome.coefficient, 0.25);
  EXPECT_EQ(outcome.threshold, 1);
}

TEST(ClipRule, the_reason_shows_a_float32_norm_without_digits_it_does_not_have) {
  EXPECT_EQ(apply_clip_rule(strict(1), 3.21, 1).reason, "norm 3.21 exceeds max_norm 1");
  EXPECT_EQ(apply_clip_rule(strict(1, DType::Float64), 3.21, 1).reason, "norm 3.21 exceeds max_norm 1");
}

TEST(ClipRule, the_reason_never_says_that_a_number_exceeds_itself) {
  const ClipOutcome outcome = apply_clip_rule(strict(0.1), 0.1, 1);  // float32 0.1 lies above float64 0.1
  ASSERT_TRUE(outcome.clipped);
  EXPECT_THAT(outcome.reason, StartsWith("norm 0.10000000149"));
}

TEST(ClipRule, a_strict_multiplier_never_leaves_the_norm_above_max_norm) {
  std::mt19937_64 random(11);
  std::uniform_real_distribution<double> exponent(-6, 6);
  for (int i = 0; i < 20'000; ++i) {
    const DType dtype = i % 2 == 0 ? DType::Float32 : DType::Float64;
    const double max_norm = std::pow(10.0, exponent(random));
    const double norm = max_norm * (1 + std::pow(10.0, exponent(random)));
    const double scale = std::exp2(std::floor(exponent(random)));
    const ClipOutcome outcome = apply_clip_rule(strict(max_norm, dtype), norm * scale, scale);
    ASSERT_TRUE(outcome.clipped);
    ASSERT_LE(outcome.coefficient * norm, max_norm);
    ASSERT_LE(outcome.multiplier * (norm * scale), max_norm);
    ASSERT_GE(outcome.coefficient * norm, max_norm * (1 - 4e-7));
  }
}

TEST(ClipRule, float32_multipliers_are_float32_numbers) {
  for (const double scale : {1.0, 3.0, 65536.0}) {
    for (const ClipRule& rule : {strict(1), torch(1), strict({})}) {
      const ClipOutcome outcome = apply_clip_rule(rule, 700, scale);
      EXPECT_EQ(static_cast<double>(static_cast<float>(outcome.multiplier)), outcome.multiplier);
    }
  }
  EXPECT_EQ(apply_clip_rule(strict(1, DType::Float64), 3, 1).coefficient, 1.0 / 3.0);
}

TEST(ClipRule, the_norm_is_unscaled_and_rounded_to_its_dtype) {
  EXPECT_EQ(apply_clip_rule(strict(1), 0.1 * 1024, 1024).norm, static_cast<double>(0.1F));
  EXPECT_EQ(apply_clip_rule(strict(1, DType::Float64), 0.1 * 1024, 1024).norm, 0.1);
}

TEST(ClipRule, unscaling_alone_multiplies_without_clipping) {
  const ClipOutcome within = apply_clip_rule(strict(1), 512, 1024);
  EXPECT_TRUE(within.multiply);
  EXPECT_FALSE(within.clipped);
  EXPECT_EQ(within.coefficient, 1);
  EXPECT_EQ(within.multiplier, 1.0 / 1024);

  const ClipOutcome measured = apply_clip_rule(torch({}), 512, 1024);
  EXPECT_TRUE(measured.multiply);
  EXPECT_EQ(measured.multiplier, 1.0 / 1024);
}

TEST(ClipRule, unscaling_and_clipping_are_one_multiplication) {
  const ClipOutcome outcome = apply_clip_rule(strict(1), 4 * 1024, 1024);
  EXPECT_EQ(outcome.norm, 4);
  EXPECT_EQ(outcome.coefficient, 0.25);
  EXPECT_EQ(outcome.multiplier, 0.25 / 1024);
}

TEST(ClipRule, without_max_norm_it_only_measures_in_both_modes) {
  for (const ClipRule& rule : {strict({}), torch({})}) {
    const ClipOutcome outcome = apply_clip_rule(rule, 1e9, 1);
    EXPECT_FALSE(outcome.multiply);
    EXPECT_FALSE(outcome.clipped);
    EXPECT_EQ(outcome.threshold, kInfinity);
    EXPECT_EQ(outcome.reason, "no max_norm: measured only");
  }
}

TEST(ClipRule, max_norm_0_means_what_the_zero_rule_says) {
  for (const ClipRule& rule : {strict(0), torch(0)}) {
    const ClipOutcome off = apply_clip_rule(with(rule, ZeroRule::Off), 3, 1);
    EXPECT_FALSE(off.multiply);
    EXPECT_EQ(off.threshold, kInfinity);
    EXPECT_EQ(off.reason, "max_norm 0 means off: measured only");

    const ClipOutcome zero = apply_clip_rule(with(rule, ZeroRule::Zero), 3, 1);
    EXPECT_TRUE(zero.multiply);
    EXPECT_TRUE(zero.clipped);
    EXPECT_EQ(zero.multiplier, 0);
    EXPECT_EQ(zero.threshold, 0);
  }
}

TEST(ClipRule, a_non_finite_norm_leaves_strict_gradients_alone_apart_from_the_scale) {
  for (const double norm : {kNaN, kInfinity}) {
    const ClipOutcome plain = apply_clip_rule(strict(1), norm, 1);
    EXPECT_FALSE(plain.multiply);
    EXPECT_EQ(plain.coefficient, 1);
    EXPECT_THAT(plain.reason, StartsWith("norm is not finite: "));
    EXPECT_EQ(apply_clip_rule(strict(1), norm, 2).multiplier, 0.5);
    EXPECT_THAT(apply_clip_rule(strict({}), norm, 1).reason, HasSubstr("measured only"));
  }
}

TEST(ClipRule, a_finite_norm_above_float32_is_not_reported_as_infinite) {
  const ClipOutcome outcome = apply_clip_rule(strict(1), 1e39, 1);
  EXPECT_EQ(outcome.norm, 1e39);
  EXPECT_TRUE(outcome.clipped);
  EXPECT_GT(outcome.coefficient, 0);
  EXPECT_LE(outcome.multiplier * 1e39, 1);
}

TEST(ClipRule, torch_mode_clips_a_norm_above_float32_by_that_norm) {
  for (const double norm : {6e38, 1e39, 3e40}) {
    for (const double scale : {1.0, 1024.0, 3.0}) {
      const ClipOutcome outcome = apply_clip_rule(torch(1), norm * scale, scale);
      EXPECT_TRUE(outcome.clipped);
      EXPECT_TRUE(outcome.multiply);
      EXPECT_GT(outcome.multiplier, 0);
      EXPECT_LE(outcome.multiplier * (norm * scale), 1) << norm << " " << scale;
      EXPECT_LE(outcome.coefficient * outcome.norm, 1);
      EXPECT_EQ(outcome.coefficient, apply_clip_rule(strict(1), norm * scale, scale).coefficient);
    }
  }
  const ClipOutcome within = apply_clip_rule(torch(1e40), 1e39, 1);
  EXPECT_FALSE(within.clipped);
  EXPECT_EQ(within.coefficient, 1);
}

TEST(ClipRule, torch_mode_has_an_infinite_float32_for_a_threshold_above_it) {
  EXPECT_EQ(apply_clip_rule(torch(1e300), std::numeric_limits<float>::max(), 1).multiplier, 1);
  const ClipOutcome outcome = apply_clip_rule(torch(1e300), kInfinity, 1);
  EXPECT_TRUE(std::isnan(outcome.multiplier)) << "as torch: 0 times infinity";
  EXPECT_THAT(outcome.reason, HasSubstr("formula torch multiplies by NaN"));
}

TEST(ClipRule, clipped_is_norm_above_threshold_whatever_becomes_of_the_step) {
  for (ClipRule rule : {strict(1), torch(1)}) {
    rule.spike_above = 2;
    for (const SpikeAction action : {SpikeAction::Clip, SpikeAction::Skip, SpikeAction::Raise}) {
      rule.spike = action;
      EXPECT_TRUE(apply_clip_rule(rule, 3, 1).clipped);
    }
    rule.nonfinite = NonfiniteAction::Skip;
    EXPECT_TRUE(apply_clip_rule(rule, kInfinity, 1).clipped);
    EXPECT_FALSE(apply_clip_rule(rule, kNaN, 1).clipped);

    ClipOutcome together[] = {
        apply_clip_rule(rule, 1.5, 1), apply_clip_rule(rule, 0.5, 1), apply_clip_rule(rule, kNaN, 1)};
    decide_together(together);
    EXPECT_EQ(together[0].action, StepAction::Skip);
    EXPECT_TRUE(together[0].clipped);
    EXPECT_FALSE(together[1].clipped);
  }
}

TEST(ClipRule, a_strict_multiplier_fits_with_any_scale) {
  std::mt19937_64 random(12);
  std::uniform_real_distribution<double> exponent(-300, 300);
  for (int i = 0; i < 20'000; ++i) {
    const double max_norm = std::pow(10.0, exponent(random) / 2);
    const double norm = max_norm * (1 + std::pow(10.0, exponent(random) / 100));
    const double scale = std::pow(10.0, exponent(random) / 10);  // not a power of two
    const double raw_norm = norm * scale;
    const ClipOutcome outcome = apply_clip_rule(strict(max_norm, DType::Float64), raw_norm, scale);
    ASSERT_TRUE(outcome.clipped);
    ASSERT_LE(outcome.multiplier * raw_norm, max_norm) << max_norm << " " << norm << " " << scale;
    ASSERT_GE(outcome.multiplier * raw_norm, max_norm * (1 - 1e-15)) << max_norm << " " << norm << " " << scale;
  }
}

TEST(ClipRule, the_edge_of_the_doubles_is_clipped_like_anything_else) {
  for (const double scale : {1.0, 2.0, 65536.0}) {
    const ClipOutcome outcome = apply_clip_rule(strict(1e300, DType::Float64), 1.7e308, scale);
    EXPECT_TRUE(outcome.clipped) << scale;
    EXPECT_EQ(outcome.norm, 1.7e308 / scale);
    EXPECT_LE(outcome.multiplier * 1.7e308, 1e300) << scale;
    EXPECT_GE(outcome.multiplier * 1.7e308, 1e300 * (1 - 1e-15)) << scale;
  }
}

TEST(ClipRule, a_scale_that_lifts_the_norm_out_of_the_doubles_still_clips) {
  for (const ClipRule& rule : {strict(10, DType::Float64), torch(10, DType::Float64)}) {
    const ClipOutcome outcome = apply_clip_rule(rule, 1e300, 1e-10);
    EXPECT_EQ(outcome.norm, std::numeric_limits<double>::max());
    EXPECT_TRUE(outcome.clipped);
    EXPECT_TRUE(outcome.multiply);
    EXPECT_LE(outcome.multiplier * 1e300, 10);
    EXPECT_GE(outcome.multiplier * 1e300, 10 * (1 - 1e-15));
    EXPECT_THAT(outcome.reason, HasSubstr("exceeds max_norm 10"));
  }
}

/// All that an outcome says; a field more does not compile here.
auto all_of(const ClipOutcome& outcome) {
  const auto& [norm, threshold, coefficient, multiplier, multiply, clipped, reason, action, spike, decides] = outcome;
  const auto bits = [](double value) { return std::bit_cast<std::uint64_t>(value); };
  return std::tuple(
      bits(norm),
      bits(threshold),
      bits(coefficient),
      bits(multiplier),
      multiply,
      clipped,
      reason,
      action,
      spike,
      decides
  );
}

TEST(ClipRule, an_outcome_that_is_written_over_says_nothing_of_the_one_before) {
  ClipRule spike = strict(1);
  spike.spike = SpikeAction::Raise;
  spike.spike_above = 2;
  ClipRule skip = strict(1);
  skip.nonfinite = NonfiniteAction::Skip;
  const ClipRule rules[] = {spike, skip, strict(1), torch(1), strict({}), with(strict(0), ZeroRule::Off)};
  const double norms[] = {0.5, 3, 1e30, kInfinity, kNaN};
  ClipOutcome used;
  for (const ClipRule& before : rules) {
    for (const double norm_before : norms) {
      for (const ClipRule& rule : rules) {
        for (const double norm : norms) {
          apply_clip_rule(before, norm_before, 2, used);
          apply_clip_rule(rule, norm, 1, used);
          EXPECT_EQ(all_of(used), all_of(apply_clip_rule(rule, norm, 1))) << norm_before << " " << norm;
        }
      }
    }
  }
}

TEST(ClipRule, the_memory_of_a_reason_is_used_again) {
  ClipOutcome outcome = apply_clip_rule(strict(1), 0.5, 1);
  const char* const memory = outcome.reason.data();
  ClipRule longest = strict(1, DType::Float64);
  longest.spike = SpikeAction::Raise;
  longest.spike_above = 1.2345678901234567e-300;
  apply_clip_rule(longest, 2.2345678901234567e-300, 1, outcome);
  EXPECT_GT(outcome.reason.size(), 90U);
  EXPECT_EQ(outcome.reason.data(), memory);
}

TEST(ClipRule, the_norm_alone_is_that_of_the_outcome) {
  for (const DType dtype : {DType::Float32, DType::Float64}) {
    for (const double norm : {0.0, 0.1, 1e39, 1e300, kInfinity}) {
      for (const double scale : {1.0, 1024.0, 1e-10}) {
        EXPECT_EQ(reported_norm(norm, scale, dtype), apply_clip_rule(strict({}, dtype), norm, scale).norm);
      }
    }
  }
}

TEST(ClipRule, a_multiplier_below_float32_becomes_0_and_not_garbage) {
  const ClipOutcome outcome = apply_clip_rule(strict(1e-30), 1e30, 1);
  EXPECT_TRUE(outcome.multiply);
  EXPECT_EQ(outcome.multiplier, 0);
}

}  // namespace
}  // namespace gradsync::plan
