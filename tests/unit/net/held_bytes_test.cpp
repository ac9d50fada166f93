#include "net/limits/held_bytes.hpp"

#include <gtest/gtest.h>

namespace gradsync::net {
namespace {

constexpr std::uint32_t kDaemonUid = 500;

PeerIdentity holder_process(std::uint32_t uid, std::int64_t pid) { return {true, uid, uid, pid}; }

void expect_excess(
    const std::optional<HeldBytes::Excess>& excess,
    ConnectionId connection,
    const std::string& whose,
    std::size_t bytes,
    std::size_t most
) {
  ASSERT_TRUE(excess.has_value());
  EXPECT_EQ(excess->connection, connection);
  EXPECT_EQ(excess->whose, whose);
  EXPECT_EQ(excess->bytes, bytes);
  EXPECT_EQ(excess->most, most);
}

TEST(HeldBytes, of_one_process_are_half_of_all_and_the_connection_that_holds_most_goes) {
  HeldBytes held{400, kDaemonUid};
  EXPECT_FALSE(held.note(1, holder_process(1000, 1), 150));
  EXPECT_FALSE(held.note(2, holder_process(1000, 1), 50));
  expect_excess(held.note(2, holder_process(1000, 1), 51), 1, "process 1", 201, 200);
}

TEST(HeldBytes, of_one_uid_are_three_quarters_of_all_and_the_process_that_holds_most_pays) {
  HeldBytes held{400, kDaemonUid};
  EXPECT_FALSE(held.note(1, holder_process(1000, 1), 200));
  EXPECT_FALSE(held.note(2, holder_process(1000, 2), 100));
  EXPECT_FALSE(held.note(4, holder_process(0, 9), 90)) << "another uid";
  expect_excess(held.note(3, holder_process(1000, 3), 10), 1, "uid 1000", 310, 300);
}

TEST(HeldBytes, of_root_and_of_the_own_uid_may_be_all) {
  for (const std::uint32_t uid : {0U, kDaemonUid}) {
    HeldBytes held{400, kDaemonUid};
    EXPECT_FALSE(held.note(1, holder_process(uid, 1), 200));
    EXPECT_FALSE(held.note(2, holder_process(uid, 2), 200));
    expect_excess(held.note(3, holder_process(uid, 3), 20), 1, "all processes", 420, 400);
  }
}

TEST(HeldBytes, of_all_are_bounded_at_the_cost_of_the_process_that_holds_most) {
  HeldBytes held{400, kDaemonUid};
  EXPECT_FALSE(held.note(1, holder_process(1000, 1), 120));
  EXPECT_FALSE(held.note(2, holder_process(1001, 2), 100));
  EXPECT_FALSE(held.note(3, holder_process(1001, 2), 99));
  expect_excess(held.note(4, holder_process(1002, 3), 82), 2, "all processes", 401, 400);
}

TEST(HeldBytes, what_a_connection_holds_replaces_what_it_held_and_what_has_gone_is_free_again) {
  HeldBytes held{400, kDaemonUid};
  EXPECT_FALSE(held.note(1, holder_process(1000, 1), 200));
  EXPECT_FALSE(held.note(1, holder_process(1000, 1), 90));
  EXPECT_EQ(held.bytes(), 90u);
  EXPECT_FALSE(held.note(1, holder_process(1000, 1), 0));
  EXPECT_EQ(held.bytes(), 0u);
  EXPECT_FALSE(held.note(2, holder_process(1000, 1), 200));
}

TEST(HeldBytes, the_oldest_goes_of_several_that_hold_as_much) {
  HeldBytes held{200, kDaemonUid};
  for (const ConnectionId id : {7, 5, 6}) {
    EXPECT_FALSE(held.note(id, holder_process(1000, 1), 30));
  }
  expect_excess(held.note(9, holder_process(1000, 1), 30), 5, "process 1", 120, 100);
}

TEST(HeldBytes, equal_pids_of_other_users_are_other_processes) {
  HeldBytes held{200, kDaemonUid};
  EXPECT_FALSE(held.note(1, holder_process(1001, 7), 100));
  EXPECT_FALSE(held.note(2, holder_process(1000, 7), 40));
  expect_excess(held.note(3, holder_process(1000, 7), 61), 3, "process 7", 101, 100);
}

TEST(HeldBytes, processes_that_are_not_seen_count_for_their_uid_only) {
  HeldBytes held{400, kDaemonUid};
  EXPECT_FALSE(held.note(1, holder_process(1000, 0), 160));
  EXPECT_FALSE(held.note(2, holder_process(1000, 0), 140)) << "they may be of several containers";
  expect_excess(held.note(3, holder_process(1000, 0), 1), 1, "uid 1000", 301, 300);
}

}  // namespace
}  // namespace gradsync::net
