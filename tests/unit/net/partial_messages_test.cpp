#include "net/socket/partial_messages.hpp"

#include <gtest/gtest.h>

namespace gradsync::net {
namespace {

PeerIdentity process(std::int64_t pid) { return {true, 1000, 1000, pid, false}; }

TEST(PartialMessages, nobody_goes_up_to_the_limit) {
  PartialMessages held{100};
  EXPECT_FALSE(held.hold(1, process(1), 60));
  EXPECT_FALSE(held.hold(2, process(2), 40));
  EXPECT_EQ(held.bytes(), 100u);
  EXPECT_FALSE(held.hold(1, process(1), 50)) << "what a connection holds replaces what it held";
  EXPECT_EQ(held.bytes(), 90u);
}

TEST(PartialMessages, the_connection_that_holds_most_goes_and_not_the_one_that_added_last) {
  PartialMessages held{100};
  EXPECT_FALSE(held.hold(1, process(1), 20));
  EXPECT_FALSE(held.hold(2, process(2), 60));
  EXPECT_EQ(held.hold(3, process(3), 30), 2u);
  EXPECT_FALSE(held.hold(2, process(2), 0));
  EXPECT_EQ(held.bytes(), 50u);
  EXPECT_FALSE(held.hold(3, process(3), 80)) << "what has gone is free again";
}

TEST(PartialMessages, of_the_process_that_holds_most_whatever_a_single_connection_of_another_holds) {
  PartialMessages held{100};
  EXPECT_FALSE(held.hold(1, process(1), 40));
  EXPECT_FALSE(held.hold(2, process(2), 30));
  EXPECT_FALSE(held.hold(3, process(2), 29));
  EXPECT_EQ(held.hold(1, process(1), 42), 2u);
}

TEST(PartialMessages, the_oldest_of_several_that_hold_as_much) {
  PartialMessages held{100};
  for (const ConnectionId id : {7, 5, 6}) {
    EXPECT_FALSE(held.hold(id, process(1), 30));
  }
  EXPECT_EQ(held.hold(9, process(1), 30), 5u);
}

TEST(PartialMessages, equal_pids_of_other_users_are_other_processes) {
  PartialMessages held{100};
  PeerIdentity stranger = process(0);  // as in another pid namespace
  stranger.uid = 1001;
  EXPECT_FALSE(held.hold(1, stranger, 50));
  EXPECT_FALSE(held.hold(2, process(0), 40));
  EXPECT_EQ(held.hold(3, process(0), 20), 2u);
}

}  // namespace
}  // namespace gradsync::net
