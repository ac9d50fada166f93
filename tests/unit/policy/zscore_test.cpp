#include "policy/zscore.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace gradsync::policy {
namespace {

using plan::ClipBound;

struct Row {
  double norm;
  double threshold;  ///< 0: not clipped
};

// Sixty norms, four of them spikes, and what a numpy-free re-implementation of the published rule makes of them.
constexpr Row kRows[] = {
    {0x1.528f2fd1656a2p-2, 0},
    {0x1.999d71b32c11cp-2, 0},
    {0x1.83d647e5b321ep-2, 0},
    {0x1.dac06d7a4a01dp-3, 0},
    {0x1.eee3502f25101p-3, 0},
    {0x1.2d00661360fa7p-2, 0},
    {0x1.25994e442f00ep-2, 0},
    {0x1.925188aace058p-2, 0},
    {0x1.e86b16ba8d97ap-2, 0},
    {0x1.321bb99495ae4p-2, 0},
    {0x1.b8c9b2a9f6a86p-3, 0},
    {0x1.fcb797e476cf4p-3, 0},
    {0x1.a62928c0d19d4p-2, 0},
    {0x1.82b7401cdf580p-2, 0},
    {0x1.1b2a0ae4d9723p-2, 0},
    {0x1.bb0b896ae8e8fp-2, 0},
    {0x1.2b11c5260b8d4p-2, 0},
    {0x1.6bf78ce391c5ep-2, 0},
    {0x1.37944947843c4p-1, 0},
    {0x1.14713ec103dadp-2, 0},
    {0x1.a1ef736ad4e8fp-2, 0},
    {0x1.bca8c6d58210ap-2, 0},
    {0x1.3cb3a83dd5505p-2, 0},
    {0x1.09558de61b650p-2, 0},
    {0x1.031a8b1487f22p-1, 0},
    {0x1.f33a675636078p-2, 0},
    {0x1.e2a27c7c645f0p-2, 0},
    {0x1.964c38f9d526bp-2, 0},
    {0x1.6a0c8e8595f68p-2, 0},
    {0x1.dae15dff901ebp-2, 0},
    {0x1.d9366f1d30386p+0, 0x1.98481da4ebd26p-2},
    {0x1.dd4df00000beep-3, 0},
    {0x1.366f2b5e3660dp-2, 0},
    {0x1.2457c562789d2p-2, 0},
    {0x1.e6ee8d10ed52fp-3, 0},
    {0x1.fd24c387041c0p-3, 0},
    {0x1.d48f42bc3ad89p-2, 0},
    {0x1.35f54669c10ddp-2, 0},
    {0x1.9236c998e4321p-3, 0},
    {0x1.2f3c2f89e2ad8p-2, 0},
    {0x1.2096d33b8c629p-2, 0},
    {0x1.2caada36ef71cp+2, 0x1.6b08c77ab283dp-2},
    {0x1.6c328cb44fd3cp-1, 0x1.f0992889b4a56p-2},
    {0x1.42909cb66c0afp-2, 0},
    {0x1.80a51d2da0da3p-2, 0},
    {0x1.9e9b4fbb7fac3p-2, 0},
    {0x1.578b42db4a8e7p-2, 0},
    {0x1.af3f7950a9894p-3, 0},
    {0x1.3afdabd9ffbcdp-2, 0},
    {0x1.595c0aa6ce0b0p-2, 0},
    {0x1.10eae8f60090dp-2, 0},
    {0x1.93993c4e21efbp-2, 0},
    {0x1.35da6a2820f11p-2, 0},
    {0x1.5bd9a567effbfp-2, 0},
    {0x1.6c25e7bbc2af2p-2, 0},
    {0x1.a5c56d23d498fp+3, 0x1.60d983ad4cb7ap-2},
    {0x1.ccf4d3f8dceb8p-2, 0},
    {0x1.7f2ee0d587fa1p-2, 0},
    {0x1.816907b36a1e6p-2, 0},
    {0x1.712982c66dac3p-1, 0x1.d15c0ad2df1d6p-2},
};
constexpr double kMean = 0x1.6608b6fc66625p-2;
constexpr double kVariance = 0x1.b14db12a26a01p-8;

TEST(ZScore, clips_what_the_published_rule_clips) {
  ZScore policy({});
  int clipped = 0;
  for (const Row& row : kRows) {
    const ClipBound bound = policy.bound();
    if (row.threshold != 0) {
      EXPECT_EQ(bound.kind, ClipBound::Kind::ZScore);
      EXPECT_DOUBLE_EQ(bound.threshold(row.norm), row.threshold);
      EXPECT_GT(row.norm, bound.threshold(row.norm));
      ++clipped;
    } else {
      EXPECT_LE(row.norm, bound.threshold(row.norm));
    }
    policy.record(row.norm);
  }
  EXPECT_EQ(clipped, 5);
  EXPECT_DOUBLE_EQ(policy.bound().mean, kMean);
  EXPECT_DOUBLE_EQ(policy.bound().deviation, std::sqrt(kVariance));
}

TEST(ZScore, has_no_threshold_before_its_warm_up_is_over) {
  ZScore policy({2.5, 0.97, 3});
  for (const double norm : {1.0, 2.0}) {
    policy.record(norm);
    EXPECT_EQ(policy.bound().kind, ClipBound::Kind::None);
  }
  policy.record(3.0);
  EXPECT_EQ(policy.bound().kind, ClipBound::Kind::ZScore);
  EXPECT_EQ(policy.bound().mean, 2.0);
  EXPECT_DOUBLE_EQ(policy.bound().deviation, std::sqrt(2.0 / 3));
}

TEST(ZScore, leaves_out_a_norm_whose_square_overflows) {
  ZScore policy({2.5, 0.97, 2});
  policy.record(1.0);
  policy.record(1e200);
  EXPECT_EQ(policy.bound().kind, ClipBound::Kind::None);
  policy.record(2.0);
  const ClipBound before = policy.bound();
  policy.record(1e200);
  EXPECT_EQ(policy.bound(), before);
}

TEST(ZScore, clips_harder_what_is_further_off) {
  const ClipBound bound{ClipBound::Kind::ZScore, 1 + 2.5 * (0.1 + plan::kScoreEpsilon), 1, 0.1, 2.5};
  EXPECT_GT(bound.threshold(2), bound.threshold(20));
  EXPECT_GT(bound.threshold(20), 1);
  EXPECT_GE(bound.threshold(1.2), 1.2);
  EXPECT_EQ(bound.threshold(std::numeric_limits<double>::infinity()), bound.begin);
}

TEST(ZScore, continues_from_its_state_bit_for_bit) {
  for (const int stop : {0, 1, 24, 25, 26, 50}) {
    ZScore whole({});
    for (int i = 0; i < stop; ++i) {
      whole.record(kRows[i].norm);
    }
    std::vector<double> state;
    whole.save(state);
    ZScore resumed({});
    ASSERT_TRUE(resumed.restore(state)) << stop;
    for (int i = stop; i < 60; ++i) {
      whole.record(kRows[i].norm);
      resumed.record(kRows[i].norm);
      ASSERT_EQ(whole.bound(), resumed.bound()) << stop << " " << i;
    }
  }
}

TEST(ZScore, refuses_a_state_that_it_never_writes) {
  const double kNaN = std::numeric_limits<double>::quiet_NaN();
  ZScore policy({2.5, 0.97, 2});
  policy.record(1.0);
  policy.record(2.0);
  const ClipBound before = policy.bound();
  const std::vector<std::vector<double>> wrong{
      {},
      {2},
      {-0.0},
      {kNaN},
      {1},
      {1, 1},
      {1, 1, -1},
      {1, 1, kNaN},
      {1, 1e200, 1},
      {1, 1, 1, 1},
      {0, 1, 2},
      {0, -1},
      {0, kNaN}};
  for (const std::vector<double>& state : wrong) {
    const Result<void> restored = policy.restore(state);
    ASSERT_TRUE(restored.has_error());
    EXPECT_EQ(restored.error().path, "state");
    EXPECT_EQ(policy.bound(), before);
  }
}

}  // namespace
}  // namespace gradsync::policy
