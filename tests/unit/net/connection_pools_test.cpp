#include "net/limits/connection_pools.hpp"

#include <gtest/gtest.h>

namespace gradsync::net {
namespace {

constexpr std::uint32_t kOwn = 500;

PeerIdentity process(std::uint32_t uid, std::int64_t pid) { return {true, uid, uid, pid}; }

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
    EXPECT_TRUE(pools.in_the_way(Pool::Health, "10.0.0.3").empty());
    pools.add(id, Pool::Health, {}, "10.0.0.2");
  }
  EXPECT_EQ(pools.in_the_way(Pool::Health, "10.0.0.3").front(), 2u) << "the oldest of them";
  EXPECT_TRUE(pools.in_the_way(Pool::Tcp, "10.0.0.2").empty());
  EXPECT_FALSE(pools.refuse_local(process(1000, 1), 0).has_value());
  pools.remove(2);
  EXPECT_TRUE(pools.in_the_way(Pool::Health, "10.0.0.3").empty());
}

TEST_F(Places, of_links_that_have_not_joined_are_sixteen_of_an_address) {
  for (ConnectionId id = 1; id <= 16; ++id) {
    EXPECT_TRUE(pools.in_the_way(Pool::Peer, "10.0.0.1").empty());
    pools.add(id, Pool::Peer, {}, "10.0.0.1");
  }
  EXPECT_EQ(pools.in_the_way(Pool::Peer, "10.0.0.1").size(), 16u);
  EXPECT_EQ(pools.in_the_way(Pool::Peer, "10.0.0.1").front(), 1u) << "the oldest of them";
  EXPECT_TRUE(pools.in_the_way(Pool::Peer, "10.0.0.2").empty());
  pools.remove(7);
  EXPECT_TRUE(pools.in_the_way(Pool::Peer, "10.0.0.1").empty());
}

TEST_F(Places, of_links_that_have_not_joined_are_256_in_all) {
  ConnectionId id = 0;
  for (int node = 0; node < 16; ++node) {
    for (int i = 0; i < 16; ++i) {
      EXPECT_TRUE(pools.in_the_way(Pool::Peer, "10.0.1.1").empty());
      pools.add(++id, Pool::Peer, {}, "10.0.0." + std::to_string(node));
    }
  }
  EXPECT_EQ(pools.in_the_way(Pool::Peer, "10.0.1.1").size(), 256u) << "any of them may go";
  EXPECT_TRUE(pools.in_the_way(Pool::Tcp, "10.0.1.1").empty());
  EXPECT_TRUE(pools.in_the_way(Pool::Health, "10.0.1.1").empty());
  EXPECT_FALSE(pools.refuse_local(process(1000, 1), 0).has_value());
}

TEST_F(Places, over_tcp_are_not_made_free_by_an_address_that_has_as_few) {
  pools.add(1, Pool::Tcp, {}, "10.0.0.1");
  pools.add(2, Pool::Tcp, {}, "10.0.0.2");
  pools.add(3, Pool::Tcp, {}, "10.0.0.2");
  for (ConnectionId id = 4; id <= ConnectionPools::kTcp; ++id) {
    pools.add(id, Pool::Tcp, {}, "10.0.0.3");
  }
  const auto for_a_new_one = pools.in_the_way(Pool::Tcp, "10.0.0.4");
  EXPECT_EQ(for_a_new_one.front(), 4u);
  EXPECT_EQ(for_a_new_one.back(), 3u) << "behind those of the address that has most";
  EXPECT_EQ(for_a_new_one.size(), ConnectionPools::kTcp - 1);
  EXPECT_EQ(pools.in_the_way(Pool::Tcp, "10.0.0.2").size(), ConnectionPools::kTcp - 3);
}

}  // namespace
}  // namespace gradsync::net
