// Random sequences of steps and of everything that may disturb them. What has to hold is checked as it happens
// (linked_machines.hpp): one verdict per word, with every ask and every vote in it and after the record of the
// coordinator; one result; BEGIN when all are connected in its epoch; nothing of an earlier epoch or attempt; exactly
// one verdict for each vote; nobody told that nobody can know while the coordinator's record is there. When the
// disturbances end, steps go on soon.

#include "unit/engine/peers/linked_machines.hpp"

#include <gtest/gtest.h>

namespace gradsync::engine {
namespace {

constexpr std::uint64_t kSequences = 1'000;
constexpr int kDisturbed = 400;
constexpr int kMostEvents = 3'000;

/// Each instance has its own thousand seeds; in every other one gradients travel.
class LinkedMachinesRandom : public testing::TestWithParam<std::uint64_t> {};

TEST_P(LinkedMachinesRandom, nodes_agree_on_every_attempt_and_go_on) {
  std::size_t done = 0;
  for (std::uint64_t seed = GetParam() * kSequences; seed < (GetParam() + 1) * kSequences; ++seed) {
    LinkedMachines machines(2 + seed % 3, seed, GetParam() % 2 == 1);
    for (int i = 0; i < kDisturbed; ++i) {
      machines.disturb();
      ASSERT_EQ(machines.breach(), "") << "seed " << seed << ", event " << i;
    }
    const std::size_t before = machines.done_by_all();
    for (int i = 0; i < kMostEvents && machines.done_by_all() < before + 2; ++i) {
      machines.go_on();
      ASSERT_EQ(machines.breach(), "") << "seed " << seed << ", event " << i << " after the disturbances";
    }
    ASSERT_EQ(machines.done_by_all(), before + 2) << "seed " << seed << " stands still: " << machines.state();
    done += before;
  }
  EXPECT_GT(done, kSequences / 10) << "the disturbances leave no step alone";
}

INSTANTIATE_TEST_SUITE_P(Seeds, LinkedMachinesRandom, testing::Range<std::uint64_t>(0, 10));

}  // namespace
}  // namespace gradsync::engine
