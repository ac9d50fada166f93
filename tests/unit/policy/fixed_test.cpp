#include "policy/fixed.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace gradsync::policy {
namespace {

using plan::ClipMode;
using plan::ClipOptions;
using plan::DType;
using plan::ZeroRule;
using ::testing::HasSubstr;

Result<plan::ClipRule> declared(const ClipOptions& clip) {
  return fixed_rule(clip, false, std::nullopt, ClipMode::Strict, DType::Float32);
}

Result<plan::ClipRule> overridden(const ClipOptions& clip, std::optional<double> max_norm) {
  return fixed_rule(clip, true, max_norm, ClipMode::Strict, DType::Float32);
}

TEST(FixedRule, is_what_was_declared) {
  const auto rule = fixed_rule({2.5, ZeroRule::Off}, false, 9.0, ClipMode::Torch, DType::Float64);
  ASSERT_TRUE(rule.has_value());
  EXPECT_EQ(rule->max_norm, 2.5);
  EXPECT_EQ(rule->mode, ClipMode::Torch);
  EXPECT_EQ(rule->zero_rule, ZeroRule::Off);
  EXPECT_EQ(rule->norm_dtype, DType::Float64);
}

TEST(FixedRule, a_step_may_override_the_threshold_or_take_it_away) {
  EXPECT_EQ(overridden({2.5, ZeroRule::Refuse}, 0.5)->max_norm, 0.5);
  EXPECT_EQ(overridden({2.5, ZeroRule::Refuse}, std::nullopt)->max_norm, std::nullopt);
}

TEST(FixedRule, refuses_a_max_norm_that_is_no_threshold) {
  for (const double max_norm :
       {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    const auto rule = overridden({1.0, ZeroRule::Zero}, max_norm);
    ASSERT_FALSE(rule.has_value()) << max_norm;
    EXPECT_EQ(rule.error().code, ErrorCode::InvalidParams);
    EXPECT_EQ(rule.error().path, "max_norm");
    EXPECT_FALSE(rule.error().hint.empty());
  }
}

TEST(FixedRule, refuses_0_until_it_is_said_what_that_means) {
  const auto refused = overridden({1.0, ZeroRule::Refuse}, 0.0);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().path, "max_norm");
  EXPECT_THAT(refused.error().message, HasSubstr("disagree"));
  EXPECT_THAT(refused.error().hint, HasSubstr("zero_rule=\"zero\""));
  EXPECT_FALSE(declared({0.0, ZeroRule::Refuse}).has_value());
  EXPECT_EQ(overridden({1.0, ZeroRule::Zero}, 0.0)->zero_rule, ZeroRule::Zero);
  EXPECT_TRUE(declared({0.0, ZeroRule::Off}).has_value());
}

TEST(PolicyDigest, changes_with_what_decides_how_gradients_are_clipped) {
  plan::DeclareOptions options;
  options.clip = {{"all", {1.0, ZeroRule::Refuse}}};
  const std::string base = policy_digest(options);
  EXPECT_EQ(base.size(), 16U);
  EXPECT_EQ(base, policy_digest(options));
  const auto changed = [&](auto change) {
    plan::DeclareOptions other = options;
    change(other);
    return policy_digest(other) != base;
  };
  EXPECT_TRUE(changed([](plan::DeclareOptions& o) { o.mode = ClipMode::Torch; }));
  EXPECT_TRUE(changed([](plan::DeclareOptions& o) { o.norm_type = 1; }));
  EXPECT_TRUE(changed([](plan::DeclareOptions& o) { o.clip[0].clip.max_norm = 2; }));
  EXPECT_TRUE(changed([](plan::DeclareOptions& o) { o.clip[0].clip.max_norm = std::nullopt; }));
  EXPECT_TRUE(changed([](plan::DeclareOptions& o) { o.clip[0].group = "other"; }));
  EXPECT_FALSE(changed([](plan::DeclareOptions& o) { o.accumulate = 4; }));
}

}  // namespace
}  // namespace gradsync::policy
