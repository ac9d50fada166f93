// The state of a job's policies: as bytes, and from one plan to the next.

#include "unit/engine/policies/group_steps.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace gradsync::engine {
namespace {

using plan::NonfiniteAction;
using plan::PercentilePolicy;
using testing::HasSubstr;

/// Threshold of the first group in the next step.
double next_threshold(const GroupPolicies& policies) {
  std::vector<plan::ClipRule> rules;
  policies.rules({}, rules);
  return rules[0].bound.begin;
}

TEST(GroupState, continues_from_its_bytes_bit_for_bit) {
  std::mt19937_64 random(11);
  std::lognormal_distribution<double> norms(0, 1);
  GroupPolicies policies(every_kind());
  for (int i = 0; i < 40; ++i) {
    const std::string bytes = saved(policies);
    GroupPolicies restored(every_kind());
    ASSERT_TRUE(restored.restore(bytes)) << i;
    ASSERT_EQ(saved(restored), bytes);
    EXPECT_EQ(restored.digest(), policies.digest());
    const std::vector<double> values = {norms(random), norms(random), norms(random), norms(random), norms(random)};
    const Step one = step(policies, values);
    const Step other = step(restored, values);
    for (std::size_t group = 0; group < 5; ++group) {
      ASSERT_EQ(one.outcomes[group].threshold, other.outcomes[group].threshold);
      ASSERT_EQ(one.outcomes[group].reason, other.outcomes[group].reason);
      for (std::size_t w = 0; w < 5; ++w) {
        ASSERT_EQ(one.watched[group][w].threshold, other.watched[group][w].threshold);
      }
    }
    ASSERT_EQ(saved(restored), saved(policies)) << i;
  }
}

TEST(GroupState, digests_are_equal_where_states_are) {
  std::string bytes;
  GroupPolicies one(plan_of({clip(kMedian, {kScore}), clip(kMedian)}));
  GroupPolicies other(plan_of({clip(kMedian, {kScore}), clip(kMedian)}));
  EXPECT_EQ(one.digest(), other.digest());
  EXPECT_EQ(one.digest().size(), 16U);
  EXPECT_EQ(one.save(bytes), one.digest());
  step(one, {0.5, 0.25});
  EXPECT_NE(one.digest(), other.digest());
  step(other, {0.25, 0.5});
  EXPECT_NE(one.digest(), other.digest()) << "which group remembers what is of account";
  GroupPolicies third(plan_of({clip(kMedian, {kScore}), clip(kMedian)}));
  step(third, {0.5, 0.25});
  EXPECT_EQ(third.digest(), one.digest());
  EXPECT_NE(
      GroupPolicies(plan_of({clip(kMedian)})).digest(),
      GroupPolicies(plan_of({clip(PercentilePolicy{51, 10, 3})})).digest()
  ) << "settings are";
}

TEST(GroupState, damaged_bytes_are_refused_and_change_nothing) {
  GroupPolicies policies(plan_of({clip(kMedian, {kScore}), clip(plan::FixedPolicy{})}));
  for (int i = 0; i < 5; ++i) {
    step(policies, {0.5 + i, 1});
  }
  const std::string bytes = saved(policies);
  GroupPolicies fresh(plan_of({clip(kMedian, {kScore}), clip(plan::FixedPolicy{})}));
  const std::string before = saved(fresh);
  const auto expect_refused = [&](const std::string& damaged) {
    const Result<void> restored = fresh.restore(damaged);
    ASSERT_FALSE(restored);
    EXPECT_EQ(restored.error().code, ErrorCode::InvalidParams);
    EXPECT_EQ(restored.error().path, "state");
    EXPECT_EQ(saved(fresh), before);
  };
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (const char flip : {'\x01', '\x80'}) {
      std::string damaged = bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ flip);
      expect_refused(damaged);
    }
    expect_refused(bytes.substr(0, at));
  }
  const auto message_with = [&](std::size_t at) {
    std::string other = bytes;
    ++other[at];
    return fresh.restore(other).error().message;
  };
  EXPECT_THAT(message_with(0), HasSubstr("are not the state of a job's policies"));
  EXPECT_THAT(message_with(16), HasSubstr("has version 2, this daemon reads version 1"));
  EXPECT_THAT(message_with(20), HasSubstr("were damaged"));
  expect_refused(bytes + '\0');
  expect_refused({});
  EXPECT_TRUE(fresh.restore(bytes));
}

TEST(GroupState, a_state_of_other_groups_or_settings_is_refused_with_both_named) {
  GroupPolicies two(plan_of({clip(kMedian), clip(kMedian, {kScore})}));
  step(two, {0.5, 0.5});
  const auto refusal = [&](const plan::Plan& plan) {
    GroupPolicies other(plan);
    const std::string before = saved(other);
    const Result<void> restored = other.restore(saved(two));
    EXPECT_FALSE(restored);
    EXPECT_EQ(saved(other), before);
    return restored ? Error{} : restored.error();
  };
  EXPECT_THAT(refusal(plan_of({clip(kMedian)})).message, HasSubstr("is of clip groups a, b, the job has a"));
  EXPECT_THAT(
      refusal(plan_of({clip(kMedian), clip(kMedian)})).message,
      HasSubstr("clip group 'b' is of 2 policies, the group has 1")
  );
  EXPECT_THAT(
      refusal(plan_of({clip(kMedian), clip(kMedian, {plan::FixedPolicy{}})})).message,
      testing::AllOf(HasSubstr("clip group 'b', watch[0]: "), HasSubstr("zscore"), HasSubstr("fixed"))
  );
  EXPECT_THAT(
      refusal(plan_of({clip(PercentilePolicy{50, 11, 3}), clip(kMedian, {kScore})})).message,
      testing::AllOf(HasSubstr("clip group 'a', policy: "), HasSubstr("window 10"), HasSubstr("window 11"))
  );
  plan::Plan other_norm = plan_of({clip(kMedian), clip(kMedian, {kScore})});
  other_norm.options.norm_type = 1;
  EXPECT_THAT(refusal(other_norm).message, HasSubstr("norm_type 1"));
}

TEST(GroupState, what_a_state_does_not_depend_on_may_change) {
  GroupPolicies policies(plan_of({clip(kMedian)}));
  for (const double norm : {0.5, 0.25, 0.75}) {
    step(policies, {norm});
  }
  plan::ClipOptions lower = clip(kMedian, {}, 0.125);
  lower.nonfinite = NonfiniteAction::Skip;
  GroupPolicies other(plan_of({lower}));
  ASSERT_TRUE(other.restore(saved(policies)));
  EXPECT_EQ(next_threshold(other), 0.5);
  EXPECT_EQ(step(other, {1}).outcomes[0].threshold, 0.125);
}

TEST(GroupState, a_later_plan_takes_over_group_by_group_what_has_equal_settings) {
  GroupPolicies earlier(plan_of({clip(kMedian, {kScore}), clip(kMedian)}));
  for (const double norm : {0.5, 0.25, 0.75, 0.5}) {
    step(earlier, {norm, norm + 1});
  }
  plan::Plan plan = plan_of({clip(kMedian, {kScore}), clip(PercentilePolicy{50, 20, 3}), clip(kMedian)});
  std::swap(plan.clip_groups[0], plan.clip_groups[2]);  // c, b, a
  GroupPolicies later(plan);
  const Result<bool> all = later.take_over(saved(earlier));
  ASSERT_TRUE(all);
  EXPECT_FALSE(*all) << "the window of b";
  const Step done = step(later, {9, 9, 9});
  EXPECT_EQ(done.outcomes[2].threshold, 0.5) << "a: as it was";
  EXPECT_EQ(done.outcomes[1].threshold, 1) << "b: another window begins anew";
  EXPECT_EQ(done.outcomes[0].threshold, 1) << "c: was not there";
  EXPECT_LT(done.watched[2][0].threshold, 1) << "the watcher of a is warm";
}

TEST(GroupState, a_watcher_that_is_made_to_decide_keeps_what_it_learnt) {
  GroupPolicies earlier(plan_of({clip(plan::FixedPolicy{}, {kScore, kMedian})}));
  for (const double norm : {0.5, 0.25, 0.75}) {
    step(earlier, {norm});
  }
  GroupPolicies later(plan_of({clip(kMedian, {plan::FixedPolicy{}})}));
  const Result<bool> all = later.take_over(saved(earlier));
  ASSERT_TRUE(all);
  EXPECT_FALSE(*all) << "the z-score that watched";
  EXPECT_EQ(next_threshold(later), 0.5);
}

TEST(GroupState, takes_over_from_itself_what_it_has) {
  GroupPolicies earlier(every_kind());
  for (int i = 0; i < 30; ++i) {
    step(earlier, {1.0 + i, 0.5, 0.25, i % 7 == 6 ? 900.0 : 1.0 / (i + 1), 2.0});
  }
  GroupPolicies later(every_kind());
  ASSERT_TRUE(*later.take_over(saved(earlier)));
  EXPECT_EQ(saved(later), saved(earlier));
}

TEST(GroupState, a_watcher_that_is_added_costs_the_others_nothing) {
  GroupPolicies earlier(plan_of({clip(kMedian)}));
  for (const double norm : {0.5, 0.25, 0.75}) {
    step(earlier, {norm});
  }
  GroupPolicies later(plan_of({clip(kMedian, {kScore})}));
  EXPECT_FALSE(later.restore(saved(earlier))) << "a checkpoint is taken as a whole or not at all";
  ASSERT_TRUE(*later.take_over(saved(earlier)));
  EXPECT_EQ(next_threshold(later), 0.5);
}

TEST(GroupState, takes_over_nothing_that_is_damaged) {
  GroupPolicies policies(plan_of({clip(kMedian)}));
  step(policies, {0.5});
  const std::string before = saved(policies);
  std::string damaged = before;
  damaged.back() ^= 1;
  EXPECT_FALSE(policies.take_over(damaged));
  EXPECT_FALSE(policies.take_over(std::string_view(before).substr(0, before.size() / 2)));
  EXPECT_EQ(saved(policies), before);
}

}  // namespace
}  // namespace gradsync::engine
