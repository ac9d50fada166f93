// Random events over one or two jobs of one to four ranks; what must hold is checked after each event.

#include "unit/engine/random_world.hpp"

#include <gmock/gmock.h>
#include <spdlog/spdlog.h>

namespace gradsync::engine {
namespace {

TEST(Random, every_call_ends_once_nothing_half_done_is_reported_and_nothing_is_left_behind) {
  const auto level = spdlog::get_level();
  spdlog::set_level(spdlog::level::off);
  constexpr std::uint64_t kRounds = 600;
  constexpr int kEvents = 500;
  std::map<std::string, int> seen;
  for (std::uint64_t seed = 1; seed <= kRounds; ++seed) {
    RandomWorld world(seed);
    for (int event = 0; event < kEvents; ++event) {
      world.event();
      ASSERT_THAT(world.breaches(), ::testing::IsEmpty()) << "seed " << seed << ", event " << event;
    }
    if (seed % 2 == 0) {
      world.wait_out();
      ASSERT_THAT(world.breaches(), ::testing::IsEmpty()) << "seed " << seed << ", waiting";
    }
    world.clear_out();
    ASSERT_THAT(world.breaches(), ::testing::IsEmpty()) << "seed " << seed << ", leaving";
    for (const auto& [kind, count] : world.seen) {
      seen[kind] += count;
    }
  }
  // The events have to reach every way a call can end.
  for (const char* kind :
       {"committed",
        "measured",
        "declared",
        "rank_lost",
        "step_timeout",
        "step_mismatch",
        "step_failed",
        "stale_epoch",
        "stale_attempt",
        "not_ready",
        "superseded",
        "declare_timeout",
        "plan_mismatch",
        "invalid_declaration",
        "duplicate_ready"}) {
    EXPECT_GT(seen[kind], 20) << kind;
  }
  EXPECT_GT(seen["committed"], 3000);
  spdlog::set_level(level);
}

}  // namespace
}  // namespace gradsync::engine
