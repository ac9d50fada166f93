#include "declarations.hpp"
#include "fakes/not_finite.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gradsync::plan {
namespace {

using ::testing::HasSubstr;

RankDeclaration with_clip(std::vector<ClipGroupOptions> clip) {
  RankDeclaration declared = declaration({tensor("a", {4})});
  declared.options.clip = std::move(clip);
  return declared;
}

ClipGroupOptions clip(std::string group, std::optional<double> max_norm, ZeroRule zero_rule = ZeroRule::Refuse) {
  return {std::move(group), {max_norm, zero_rule}};
}

TEST(ValidateOptions, accumulate_is_at_least_1) {
  RankDeclaration declared = declaration({tensor("a", {4})});
  declared.options.accumulate = 0;
  const Error error = refused(declared, kDp2);
  EXPECT_EQ(error.path, "options.accumulate");
  EXPECT_THAT(error.message, HasSubstr("accumulate is 0"));
}

TEST(ValidateOptions, a_rule_for_buckets_where_there_are_some) {
  RankDeclaration declared = declaration({tensor("a", {4}, {replicate({"dp"})})});
  declared.options.buckets = BucketRule::Torch;
  EXPECT_TRUE(validate_declaration(declared, kDp2).has_value());
  declared.options.data_path = DataPath::Stats;
  const Error error = refused(declared, kDp2);
  EXPECT_EQ(error.code, ErrorCode::InvalidDeclaration);
  EXPECT_EQ(error.path, "options.buckets");
  EXPECT_THAT(error.message, HasSubstr("\"torch\""));
}

TEST(ValidateOptions, a_format_of_partial_sums_where_they_travel) {
  RankDeclaration declared = declaration({tensor("a", {4}, {replicate({"dp"})})});
  declared.options.partial_sums = PartialSums::BFloat16;
  EXPECT_TRUE(validate_declaration(declared, kDp2).has_value());
  declared.options.data_path = DataPath::Stats;
  const Error error = refused(declared, kDp2);
  EXPECT_EQ(error.code, ErrorCode::InvalidDeclaration);
  EXPECT_EQ(error.path, "options.partial_sums");
  EXPECT_THAT(error.message, HasSubstr("\"bfloat16\""));
}

TEST(ValidateOptions, norm_types_from_1_to_infinity) {
  RankDeclaration declared = declaration({tensor("a", {4})});
  for (const double p : {1.0, 2.0, 2.5, kInfinity}) {
    declared.options.norm_type = p;
    EXPECT_TRUE(validate_declaration(declared, kDp2).has_value()) << p;
  }
  for (const double p : {0.0, 0.99, -2.0, kNaN, -kInfinity}) {
    declared.options.norm_type = p;
    EXPECT_EQ(refused(declared, kDp2).path, "options.norm_type") << p;
  }
}

TEST(ValidateOptions, max_norm_is_a_number_that_means_something) {
  EXPECT_TRUE(validate_declaration(with_clip({clip("all", 1.0)}), kDp2).has_value());
  EXPECT_TRUE(validate_declaration(with_clip({clip("all", std::nullopt)}), kDp2).has_value());
  for (const double max_norm : {-1.0, kNaN, kInfinity, -kInfinity}) {
    const Error error = refused(with_clip({clip("all", max_norm)}), kDp2);
    EXPECT_EQ(error.code, ErrorCode::InvalidDeclaration) << max_norm;
    EXPECT_EQ(error.path, "options.clip[0].max_norm") << max_norm;
  }
}

TEST(ValidateOptions, max_norm_0_needs_a_zero_rule) {
  const Error error = refused(with_clip({clip("all", 0.0)}), kDp2);
  EXPECT_EQ(error.path, "options.clip[0].max_norm");
  EXPECT_THAT(error.message, HasSubstr("disagree"));
  EXPECT_THAT(error.hint, HasSubstr("zero_rule=\"off\""));
  EXPECT_TRUE(validate_declaration(with_clip({clip("all", 0.0, ZeroRule::Off)}), kDp2).has_value());
  EXPECT_TRUE(validate_declaration(with_clip({clip("all", -0.0, ZeroRule::Zero)}), kDp2).has_value());
}

TEST(ValidateOptions, a_policy_is_in_range_and_all_of_them_fit_into_a_message) {
  ClipGroupOptions wrong = clip("all", 1.0);
  wrong.clip.policy = PercentilePolicy{101, 1000, 100};
  const Error error = refused(with_clip({wrong}), kDp2);
  EXPECT_EQ(error.code, ErrorCode::InvalidDeclaration);
  EXPECT_EQ(error.path, "options.clip[0].policy.percentile");

  ClipGroupOptions long_memory = clip("all", 1.0);
  long_memory.clip.policy = PercentilePolicy{95, 5'000, 100};
  long_memory.clip.watch.assign(8, PercentilePolicy{95, 5'000, 100});
  EXPECT_TRUE(validate_declaration(with_clip({long_memory}), kDp2).has_value());
  ClipGroupOptions other = long_memory;
  other.group = "other";
  const Error together = refused(with_clip({long_memory, other}), kDp2);
  EXPECT_EQ(together.path, "options.clip");
  EXPECT_EQ(together.message, "the policies remember 90000 norms, at most 50000 are allowed");
}

TEST(ValidateOptions, what_watchers_say_fits_into_a_report) {
  std::vector<ClipGroupOptions> groups;
  for (int group = 0; group < 33; ++group) {
    groups.push_back(clip("group " + std::to_string(group), 1.0));
    groups.back().clip.watch.assign(8, ObservePolicy{});
  }
  const Error error = refused(with_clip(groups), kDp2);
  EXPECT_EQ(error.path, "options.clip");
  EXPECT_THAT(error.message, HasSubstr("264 policies watch, at most 256"));
}

TEST(ValidateOptions, a_clip_group_is_listed_once) {
  const Error error = refused(with_clip({clip("all", 1.0), clip("all", 2.0)}), kDp2);
  EXPECT_EQ(error.path, "options.clip[1].group");
  EXPECT_THAT(error.message, HasSubstr("0 and 1"));
}

TEST(ValidateOptions, a_listed_clip_group_has_tensors) {
  RankDeclaration declared = with_clip({clip("expert", 1.0)});
  declared.tensors.own()[0].clip_group = "experts";
  EXPECT_TRUE(validate_declaration(declared, kDp2).has_value()) << "another rank may hold them";
  const Error error = plan_job(std::vector<const RankDeclaration*>{&declared, &declared}, kDp2, {}).error();
  EXPECT_EQ(error.path, "options.clip[0].group");
  EXPECT_THAT(error.message, HasSubstr("'expert'"));
  EXPECT_EQ(error.hint, "did you mean 'experts'?");
}

TEST(ValidateOptions, groups_that_are_not_listed_only_measure) {
  RankDeclaration declared = declaration({tensor("a", {4})});
  declared.tensors.own()[0].clip_group = "unlisted";
  EXPECT_TRUE(validate_declaration(declared, kDp2).has_value());
}

TEST(ValidateOptions, weight_fingerprints_for_all_tensors_or_none) {
  RankDeclaration declared = declaration({tensor("a", {4}), tensor("b", {4})});
  declared.weight_fingerprints = {"x", ""};
  EXPECT_TRUE(validate_declaration(declared, kDp2).has_value());
  declared.weight_fingerprints = {"x"};
  const Error error = refused(declared, kDp2);
  EXPECT_EQ(error.path, "tensors");
  EXPECT_THAT(error.message, HasSubstr("1 weight fingerprints for 2 tensors"));
}

}  // namespace
}  // namespace gradsync::plan
