#include "base/fair_budget.hpp"

#include <gtest/gtest.h>

namespace gradsync {
namespace {

constexpr std::uint32_t kOwn = 500;

TEST(FairBudget, gives_a_process_half_a_uid_three_quarters_and_all_together_everything) {
  FairBudget budget(16, kOwn);
  budget.add({1000, 1}, 8);
  const auto process = budget.refuse({1000, 1});
  ASSERT_TRUE(process);
  EXPECT_EQ(process->whose, "process 1");
  EXPECT_EQ(process->held, 8U);
  EXPECT_EQ(process->most, 8U);

  EXPECT_FALSE(budget.refuse({1000, 2}, 4)) << "another process of the uid";
  budget.add({1000, 2}, 4);
  const auto uid = budget.refuse({1000, 2});
  ASSERT_TRUE(uid);
  EXPECT_EQ(uid->whose, "uid 1000");
  EXPECT_EQ(uid->held, 12U);
  EXPECT_EQ(uid->most, 12U);

  EXPECT_FALSE(budget.refuse({1001, 3}, 4)) << "what the limit of one uid leaves to another";
  budget.add({1001, 3}, 4);
  const auto all = budget.refuse({1002, 4});
  ASSERT_TRUE(all);
  EXPECT_EQ(all->whose, "the daemon");
  EXPECT_EQ(all->held, 16U);
  EXPECT_EQ(all->most, 16U);
}

TEST(FairBudget, lets_root_and_the_daemons_own_uid_take_everything_but_no_process_of_theirs) {
  for (const std::uint32_t uid : {0U, kOwn}) {
    FairBudget budget(16, kOwn);
    budget.add({uid, 1}, 8);
    EXPECT_TRUE(budget.refuse({uid, 1}));
    budget.add({uid, 2}, 8);
    EXPECT_EQ(budget.refuse({uid, 3})->whose, "the daemon");
  }
}

TEST(FairBudget, counts_processes_of_another_namespace_for_their_uid_only) {
  FairBudget budget(16, kOwn);
  budget.add({1000, 0}, 8);
  EXPECT_FALSE(budget.refuse({1000, 0}, 4));
  EXPECT_TRUE(budget.refuse({1000, 0}, 5));
}

TEST(FairBudget, may_bound_uids_alone) {
  FairBudget budget(100, kOwn, FairBudget::Bounds::OfUids);
  EXPECT_FALSE(budget.refuse({1000, 1}, 75));
  budget.add({1000, 1}, 75);
  const auto refused = budget.refuse({1000, 2}, 1);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->whose, "uid 1000");
  EXPECT_EQ(refused->most, 75U);
  EXPECT_FALSE(budget.refuse({1001, 3}, 75)) << "beyond what there is for all";
  EXPECT_FALSE(budget.refuse({kOwn, 4}, 1000));
}

TEST(FairBudget, has_sums_that_do_not_overflow) {
  FairBudget budget(100, kOwn, FairBudget::Bounds::OfUids);
  const std::uint64_t half = 1ULL << 63;
  EXPECT_FALSE(budget.refuse({kOwn, 4}, half));
  budget.add({kOwn, 4}, half);
  const auto refused = budget.refuse({kOwn, 4}, half);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->whose, "the daemon");
  EXPECT_FALSE(budget.refuse({kOwn, 4}, half - 1));
}

TEST(FairBudget, has_room_again_for_what_is_given_back) {
  FairBudget budget(16, kOwn);
  budget.add({1000, 1}, 8);
  budget.take({1000, 1}, 3);
  EXPECT_EQ(budget.held(), 5U);
  EXPECT_FALSE(budget.refuse({1000, 1}, 3));
  EXPECT_TRUE(budget.refuse({1000, 1}, 4));
}

TEST(FairBudget, does_not_overflow_without_a_limit) {
  FairBudget budget(FairBudget::kUnlimited, kOwn);
  budget.add({1000, 1}, 1ULL << 62);
  EXPECT_FALSE(budget.refuse({1000, 1}, FairBudget::kUnlimited - (1ULL << 62))) << "there are no parts of it";
  EXPECT_FALSE(budget.refuse({1000, 2}, 1ULL << 62));
  EXPECT_TRUE(budget.refuse({1000, 2}, FairBudget::kUnlimited));
}

}  // namespace
}  // namespace gradsync
