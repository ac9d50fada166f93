#include "engine/epoch/local_ranks.hpp"

#include <gtest/gtest.h>

namespace gradsync::engine {
namespace {

TEST(LocalRanks, have_their_rank_as_seat_where_all_are_here) {
  const LocalRanks ranks = LocalRanks::all(4);
  EXPECT_TRUE(ranks.alone());
  EXPECT_EQ(ranks.size(), 4U);
  EXPECT_EQ(ranks.rank_of(3), 3);
  EXPECT_EQ(ranks.seat_of(3), 3U);
  EXPECT_EQ(ranks.seat_of(4), std::nullopt);
  EXPECT_EQ(ranks.seat_of(-1), std::nullopt);
}

TEST(LocalRanks, that_follow_each_other_are_counted_from_the_first) {
  const LocalRanks ranks = LocalRanks::of(8, {4, 5, 6});
  EXPECT_FALSE(ranks.alone());
  EXPECT_EQ(ranks.world_size(), 8);
  EXPECT_EQ(ranks.rank_of(2), 6);
  EXPECT_EQ(ranks.seat_of(4), 0U);
  EXPECT_EQ(ranks.seat_of(3), std::nullopt);
  EXPECT_EQ(ranks.seat_of(7), std::nullopt);
}

TEST(LocalRanks, that_were_dealt_out_in_turns_are_found) {
  const LocalRanks ranks = LocalRanks::of(8, {1, 3, 5, 7});
  EXPECT_EQ(ranks.size(), 4U);
  for (std::size_t seat = 0; seat < ranks.size(); ++seat) {
    EXPECT_EQ(ranks.rank_of(seat), static_cast<std::int64_t>(2 * seat + 1));
    EXPECT_EQ(ranks.seat_of(ranks.rank_of(seat)), seat);
    EXPECT_EQ(ranks.seat_of(ranks.rank_of(seat) - 1), std::nullopt);
  }
}

}  // namespace
}  // namespace gradsync::engine
