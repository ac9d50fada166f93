#include "net/fair_share.hpp"

#include <gtest/gtest.h>

namespace gradsync::net {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

PeerIdentity process(std::int64_t pid) { return {.local = true, .uid = 1000, .gid = 1000, .pid = pid, .token = false}; }

class FairShareTest : public testing::Test {
 protected:
  Duration charge(std::int64_t pid, Duration computed, ConnectionId connection = 1) {
    return share_.charge(process(pid), connection, computed, now_);
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
  now_ += milliseconds{20'000};
  use_the_burst(7);
}

TEST_F(FairShareTest, pauses_for_a_second_at_most_and_forgets_no_debt) {
  use_the_burst(7);
  EXPECT_EQ(charge(7, milliseconds{200}), FairShare::kLongestPause);  // 4 s
  now_ += FairShare::kLongestPause;
  EXPECT_EQ(charge(7, Duration::zero()), FairShare::kLongestPause);
}

TEST_F(FairShareTest, counts_the_connections_of_an_unknown_process_apart) {
  use_the_burst(0);
  EXPECT_GT(charge(0, milliseconds{2}, 1), Duration::zero());
  EXPECT_EQ(charge(0, milliseconds{2}, 2), Duration::zero());
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
