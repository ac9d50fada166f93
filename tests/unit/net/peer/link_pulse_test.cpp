#include "net/peer/link_pulse.hpp"

#include <gtest/gtest.h>

namespace gradsync::net {
namespace {

using std::chrono::microseconds;

class LinkPulseTest : public testing::Test {
 protected:
  LinkPulseTest() { pulse.heard(start); }

  const TimePoint start{std::chrono::hours(1)};
  LinkPulse pulse{Milliseconds{1'000}, Milliseconds{5'000}};
};

TEST_F(LinkPulseTest, a_beat_is_due_where_nothing_else_went_out_since_the_last_time) {
  EXPECT_TRUE(pulse.beat_due());
  EXPECT_TRUE(pulse.beat_due());
  pulse.sent();
  pulse.sent();
  EXPECT_FALSE(pulse.beat_due());
  EXPECT_TRUE(pulse.beat_due());
}

TEST_F(LinkPulseTest, is_looked_at_again_when_it_could_be_dead) {
  EXPECT_EQ(pulse.look(start, false), Milliseconds{5'000});
  EXPECT_EQ(pulse.look(start + Milliseconds{4'000}, false), Milliseconds{1'000});
  EXPECT_EQ(pulse.look(start + microseconds{4'999'001}, false), Milliseconds{1}) << "never too early";
  EXPECT_EQ(pulse.look(start + Milliseconds{5'000}, false), std::nullopt);
}

TEST_F(LinkPulseTest, lives_from_the_last_byte) {
  pulse.heard(start + Milliseconds{4'000});
  EXPECT_EQ(pulse.look(start + Milliseconds{5'000}, false), Milliseconds{4'000});
  EXPECT_EQ(pulse.look(start + Milliseconds{8'999}, false), Milliseconds{1});
  EXPECT_EQ(pulse.look(start + Milliseconds{9'000}, false), std::nullopt);
}

TEST_F(LinkPulseTest, bytes_that_wait_to_be_read_give_one_more_beat_and_no_second_one) {
  EXPECT_EQ(pulse.look(start + Milliseconds{9'000}, true), Milliseconds{1'000});
  EXPECT_EQ(pulse.look(start + Milliseconds{10'000}, true), std::nullopt);
}

TEST_F(LinkPulseTest, bytes_that_were_read_give_that_beat_again) {
  EXPECT_EQ(pulse.look(start + Milliseconds{9'000}, true), Milliseconds{1'000});
  pulse.heard(start + Milliseconds{9'500});
  EXPECT_EQ(pulse.look(start + Milliseconds{10'000}, false), Milliseconds{4'500});
  EXPECT_EQ(pulse.look(start + Milliseconds{20'000}, true), Milliseconds{1'000});
}

}  // namespace
}  // namespace gradsync::net
