#include "net/limits/fair_share.hpp"

#include <gtest/gtest.h>

namespace gradsync::net {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

PeerIdentity process_of(std::int64_t pid) { return {.local = true, .uid = 1000, .gid = 1000, .pid = pid}; }

constexpr auto kUnderstood = FairShare::Worth::Understood;
constexpr auto kRefused = FairShare::Worth::Refused;
constexpr std::int64_t kStepping = 999;

class FairShareTest : public testing::Test {
 protected:
  /// While another process steps.
  Duration charge(
      std::int64_t pid, Duration computed, FairShare::Worth worth = kUnderstood, ConnectionId connection = 1
  ) {
    step(kStepping);
    return share_.charge(process_of(pid), connection, worth, computed, now_);
  }

  void step(std::int64_t pid) {
    ASSERT_EQ(share_.charge(process_of(pid), 1, kUnderstood, FairShare::kShortTurn, now_), Duration::zero());
  }

  void use_the_burst(std::int64_t pid) {
    for (Duration used{}; used < FairShare::kBurst; used += milliseconds{10}) {
      ASSERT_EQ(charge(pid, milliseconds{10}), Duration::zero());
    }
  }

  FairShare share_;
  TimePoint now_{seconds{1000}};
};

TEST_F(FairShareTest, lets_a_process_run_ahead_and_then_makes_it_wait) {
  use_the_burst(7);
  EXPECT_EQ(charge(7, milliseconds{2}), milliseconds{40});
  EXPECT_EQ(charge(8, milliseconds{2}), Duration::zero());
}

TEST_F(FairShareTest, lets_what_is_refused_run_ahead_less) {
  EXPECT_EQ(charge(7, milliseconds{5}, kRefused), Duration::zero());
  EXPECT_EQ(charge(7, milliseconds{1}, kRefused), milliseconds{20});
  EXPECT_EQ(charge(7, std::chrono::microseconds{10}, kRefused), std::chrono::microseconds{20'200});
  EXPECT_EQ(charge(7, milliseconds{2}), Duration::zero()) << "what is understood has the whole burst";
}

TEST_F(FairShareTest, holds_what_was_understood_against_nothing_else) {
  use_the_burst(7);
  EXPECT_EQ(charge(7, std::chrono::microseconds{2}, kRefused), Duration::zero()) << "a ping after a declaration";
  EXPECT_EQ(share_.pause(process_of(7), 2, kRefused, now_), Duration::zero());
  EXPECT_GT(charge(7, milliseconds{2}), Duration::zero());
}

TEST_F(FairShareTest, pauses_no_less_than_a_while) {
  EXPECT_EQ(charge(7, milliseconds{5}, kRefused), Duration::zero());
  EXPECT_EQ(charge(7, std::chrono::microseconds{1}, kRefused), FairShare::kShortestPause);
}

TEST_F(FairShareTest, makes_nobody_wait_where_nobody_else_is_served) {
  for (int i = 0; i < 1000; ++i) {
    step(7);
    ASSERT_EQ(share_.charge(process_of(7), 1, kRefused, milliseconds{20}, now_), Duration::zero());
  }
  step(8);
  EXPECT_GT(share_.charge(process_of(7), 1, kRefused, milliseconds{20}, now_), Duration::zero());
}

TEST_F(FairShareTest, forgets_debts_made_while_nobody_else_was_served) {
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(share_.charge(process_of(7), 1, kUnderstood, milliseconds{20}, now_), Duration::zero());
  }
  EXPECT_EQ(charge(7, milliseconds{2}), FairShare::kLongestPause);
  now_ += FairShare::kLongestPause;
  EXPECT_EQ(charge(7, milliseconds{2}), milliseconds{40});
}

TEST_F(FairShareTest, knows_of_others_for_a_while) {
  use_the_burst(7);
  now_ += FairShare::kBusy;
  EXPECT_GT(share_.charge(process_of(7), 1, kUnderstood, milliseconds{100}, now_), Duration::zero());
  step(7);
  step(7);
  EXPECT_GT(share_.charge(process_of(7), 1, kUnderstood, milliseconds{2}, now_), Duration::zero()) << "its own steps";
  now_ += milliseconds{1};
  EXPECT_EQ(share_.charge(process_of(7), 1, kUnderstood, milliseconds{2}, now_), Duration::zero());
}

TEST_F(FairShareTest, makes_requests_by_http_wait_for_what_was_used_by_any_connection) {
  EXPECT_EQ(share_.pause(process_of(7), 1, kRefused, now_), Duration::zero());
  EXPECT_EQ(charge(7, milliseconds{6}, kRefused), milliseconds{20});
  EXPECT_EQ(share_.pause(process_of(7), 2, kRefused, now_), milliseconds{20});
  EXPECT_EQ(share_.pause(process_of(8), 2, kRefused, now_), Duration::zero());
  now_ += milliseconds{20};
  EXPECT_EQ(share_.pause(process_of(7), 2, kRefused, now_), Duration::zero());
}

TEST_F(FairShareTest, lets_one_connection_go_on_at_a_time) {
  EXPECT_EQ(charge(7, milliseconds{6}, kRefused), milliseconds{20});
  now_ += milliseconds{20};
  ASSERT_EQ(share_.pause(process_of(7), 1, kRefused, now_), Duration::zero());
  share_.prepay(process_of(7), 1, kRefused, milliseconds{6}, now_);
  EXPECT_EQ(share_.pause(process_of(7), 2, kRefused, now_), milliseconds{120}) << "the other one waits on";
  step(kStepping);
  EXPECT_EQ(share_.charge(process_of(7), 1, kRefused, milliseconds{7}, now_, milliseconds{6}), milliseconds{140});
}

TEST_F(FairShareTest, never_charges_short_messages) {
  for (int i = 0; i < 100'000; ++i) {
    ASSERT_EQ(charge(7, milliseconds{1}), Duration::zero());
  }
  use_the_burst(7);
}

TEST_F(FairShareTest, gives_the_share_to_who_waits_and_the_burst_back_to_who_is_idle) {
  use_the_burst(7);
  for (int i = 0; i < 100; ++i) {
    const Duration pause = charge(7, milliseconds{2});
    ASSERT_EQ(pause, milliseconds{40});
    now_ += pause;
  }
  now_ += milliseconds{3'000};
  use_the_burst(7);
}

TEST_F(FairShareTest, pauses_for_a_second_at_most) {
  use_the_burst(7);
  EXPECT_EQ(charge(7, milliseconds{200}), FairShare::kLongestPause);  // 4 s
}

TEST_F(FairShareTest, counts_the_connections_of_an_unknown_process_apart) {
  use_the_burst(0);
  EXPECT_GT(charge(0, milliseconds{2}, kUnderstood, 1), Duration::zero());
  EXPECT_EQ(charge(0, milliseconds{2}, kUnderstood, 2), Duration::zero());
}

TEST_F(FairShareTest, keeps_no_account_of_processes_that_are_long_gone) {
  for (std::int64_t pid = 1; pid <= 100'000; ++pid) {
    EXPECT_EQ(charge(pid, milliseconds{2}), Duration::zero());
    now_ += milliseconds{1};
  }
  EXPECT_LE(share_.accounts(), 2048U);
}

}  // namespace
}  // namespace gradsync::net
