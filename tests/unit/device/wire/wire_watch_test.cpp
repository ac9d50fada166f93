// When an end of a connection asks, tells and gives up, look by look.

#include "device/wire/wire_watch.hpp"

#include <gmock/gmock.h>

#include <vector>

namespace gradsync::device {
namespace {

using Advice = WireWatch::Advice;
using testing::Each;

constexpr WireLook kWaits{.waits = true};
constexpr WireLook kHolds{.holds = true};

std::vector<Advice> looks(WireWatch& watch, const WireLook& now, unsigned count) {
  std::vector<Advice> advice;
  for (unsigned i = 0; i < count; ++i) {
    advice.push_back(watch.look(now));
  }
  return advice;
}

TEST(WireWatch, has_nothing_to_say_of_a_connection_that_nobody_needs) {
  WireWatch watch;
  EXPECT_THAT(looks(watch, {}, 100), Each(Advice::Nothing));
}

TEST(WireWatch, asks_every_third_look_and_gives_up_behind_the_tenth) {
  WireWatch watch;
  constexpr auto kNo = Advice::Nothing;
  constexpr auto kAsk = Advice::Ask;
  EXPECT_THAT(
      looks(watch, kWaits, 11),
      testing::ElementsAre(kNo, kNo, kAsk, kNo, kNo, kAsk, kNo, kNo, kAsk, kNo, Advice::GiveUp)
  );
}

TEST(WireWatch, begins_again_when_a_byte_has_come) {
  WireWatch watch;
  for (std::uint64_t received = 1; received < 20; ++received) {
    EXPECT_EQ(watch.look({.waits = true, .received = received}), Advice::Nothing);
    EXPECT_EQ(looks(watch, {.waits = true, .received = received}, 10).back(), Advice::Nothing);
  }
}

TEST(WireWatch, counts_only_looks_at_which_the_end_waited) {
  WireWatch watch;
  for (int i = 0; i < 10; ++i) {
    EXPECT_NE(looks(watch, kWaits, 10).back(), Advice::GiveUp);
    EXPECT_EQ(watch.look({}), Advice::Nothing);
  }
}

TEST(WireWatch, tells_of_an_end_that_holds_for_as_long_as_it_does) {
  WireWatch watch;
  unsigned told = 0;
  for (const Advice advice : looks(watch, kHolds, 90)) {
    EXPECT_NE(advice, Advice::GiveUp);
    told += advice == Advice::Tell ? 1 : 0;
  }
  EXPECT_EQ(told, 30U);
}

}  // namespace
}  // namespace gradsync::device
