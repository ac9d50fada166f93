#include "net/limits/connection_pools.hpp"

#include <gtest/gtest.h>

namespace gradsync::net {
namespace {

constexpr std::uint32_t kOwn = 500;

PeerIdentity process(std::uint32_t uid, std::int64_t pid) { return {true, uid, uid, pid, false}; }

class Places : public testing::Test {
 protected:
  /// Takes places until the first refusal; returns how many.
  std::size_t take(const PeerIdentity& peer, std::size_t most = 1000) {
    for (std::size_t taken = 0; taken < most; ++taken) {
      if (const auto refused = pools.refuse_local(peer, 0)) {
        said = refused->message;
        return taken;
      }
      pools.add(++last, Pool::Local, peer, "");
    }
    return most;
  }

  ConnectionPools pools{16, kOwn};
  ConnectionId last = 0;
  std::string said;
};

TEST_F(Places, of_one_process_are_half_of_all) {
  EXPECT_EQ(take(process(1000, 1)), 8u);
  EXPECT_EQ(said, "process 1 has 8 connections open, the limit is 8 ([limits] connections=16)");
}

TEST_F(Places, of_one_uid_are_three_quarters_of_all) {
  EXPECT_EQ(take(process(1000, 1)) + take(process(1000, 2)), 12u);
  EXPECT_EQ(said, "uid 1000 has 12 connections open, the limit is 12 ([limits] connections=16)");
  EXPECT_EQ(take(process(1001, 3)), 4u);
  EXPECT_EQ(said, "the daemon has 16 connections open, the limit is 16 ([limits] connections=16)");
}

TEST_F(Places, of_root_and_of_the_own_uid_are_all) { EXPECT_EQ(take(process(0, 1)) + take(process(kOwn, 2)), 16u); }

TEST_F(Places, are_free_again_when_a_connection_ends) {
  EXPECT_EQ(take(process(1000, 1)), 8u);
  pools.remove(3);
  pools.remove(3);
  EXPECT_EQ(take(process(1000, 1)), 1u);
}

TEST_F(Places, of_a_uid_are_also_taken_by_what_is_not_closed_yet) {
  EXPECT_FALSE(pools.refuse_local(process(1000, 1), 11).has_value());
  EXPECT_TRUE(pools.refuse_local(process(1000, 1), 12).has_value());
}

TEST_F(Places, of_a_process_in_another_pid_namespace_are_those_of_its_uid) { EXPECT_EQ(take(process(1000, 0)), 12u); }

TEST_F(Places, at_the_health_port_are_made_free_by_the_address_that_has_most) {
  pools.add(1, Pool::Health, {}, "10.0.0.1");
  for (ConnectionId id = 2; id <= ConnectionPools::kHealth; ++id) {
    EXPECT_TRUE(pools.in_the_way(Pool::Health).empty());
    pools.add(id, Pool::Health, {}, "10.0.0.2");
  }
  EXPECT_EQ(pools.in_the_way(Pool::Health).front(), 2u) << "the oldest of them";
  EXPECT_TRUE(pools.in_the_way(Pool::Tcp).empty());
  EXPECT_FALSE(pools.refuse_local(process(1000, 1), 0).has_value());
  pools.remove(2);
  EXPECT_TRUE(pools.in_the_way(Pool::Health).empty());
}

}  // namespace
}  // namespace gradsync::net
