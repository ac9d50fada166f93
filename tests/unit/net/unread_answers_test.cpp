#include "net/limits/unread_answers.hpp"

#include <gtest/gtest.h>

namespace gradsync::net {
namespace {

constexpr std::size_t kKib = 1024;
constexpr std::uint32_t kOwn = 500;

PeerIdentity process(std::uint32_t uid, std::int64_t pid) { return {true, uid, uid, pid, false}; }

TEST(UnreadAnswers, of_one_process_are_half_of_all) {
  UnreadAnswers unread{400 * kKib, kOwn};
  EXPECT_FALSE(unread.note(1, process(1000, 1), 150 * kKib));
  EXPECT_FALSE(unread.note(2, process(1000, 1), 50 * kKib));
  const auto excess = unread.note(2, process(1000, 1), 51 * kKib);
  ASSERT_TRUE(excess.has_value());
  EXPECT_EQ(excess->connection, 1u) << "the one that holds most";
  EXPECT_EQ(excess->why, "limit_exceeded: 205824 bytes of answers to process 1 are unread, the limit is 204800");
}

TEST(UnreadAnswers, of_one_uid_are_three_quarters_of_all) {
  UnreadAnswers unread{400 * kKib, kOwn};
  EXPECT_FALSE(unread.note(1, process(1000, 1), 200 * kKib));
  EXPECT_FALSE(unread.note(2, process(1000, 2), 100 * kKib));
  const auto excess = unread.note(3, process(1000, 2), 20 * kKib);
  ASSERT_TRUE(excess.has_value());
  EXPECT_EQ(excess->connection, 2u) << "the one that holds most of the process that added last";
  EXPECT_EQ(excess->why, "limit_exceeded: 327680 bytes of answers to uid 1000 are unread, the limit is 307200");
}

TEST(UnreadAnswers, of_root_and_of_the_own_uid_may_be_all) {
  for (const std::uint32_t uid : {0U, kOwn}) {
    UnreadAnswers unread{400 * kKib, kOwn};
    EXPECT_FALSE(unread.note(1, process(uid, 1), 200 * kKib));
    EXPECT_FALSE(unread.note(2, process(uid, 2), 200 * kKib));
    const auto excess = unread.note(3, process(uid, 3), 20 * kKib);
    ASSERT_TRUE(excess.has_value());
    EXPECT_EQ(excess->why, "limit_exceeded: 430080 bytes of answers to all processes are unread, the limit is 409600");
  }
}

TEST(UnreadAnswers, of_all_are_bounded_at_the_cost_of_the_process_that_leaves_most) {
  UnreadAnswers unread{400 * kKib, kOwn};
  EXPECT_FALSE(unread.note(1, process(1000, 1), 200 * kKib));
  EXPECT_FALSE(unread.note(2, process(1001, 2), 180 * kKib));
  const auto excess = unread.note(3, process(1002, 3), 40 * kKib);
  ASSERT_TRUE(excess.has_value());
  EXPECT_EQ(excess->connection, 1u);
  EXPECT_EQ(excess->why, "limit_exceeded: 430080 bytes of answers to all processes are unread, the limit is 409600");
  EXPECT_FALSE(unread.note(1, process(1000, 1), 0));
  EXPECT_EQ(unread.bytes(), 220 * kKib);
}

TEST(UnreadAnswers, that_are_small_count_for_nothing) {
  UnreadAnswers unread{20 * kKib, kOwn};
  for (ConnectionId id = 1; id <= 100; ++id) {
    EXPECT_FALSE(unread.note(id, process(1000, 1), UnreadAnswers::kFreeBytes));
  }
  EXPECT_EQ(unread.bytes(), 0u);
}

}  // namespace
}  // namespace gradsync::net
