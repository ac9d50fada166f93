#include "engine/peers/alone_peers.hpp"

#include <gtest/gtest.h>

namespace gradsync::engine {
namespace {

template <typename Event>
bool is_one(const PeerEvents& events) {
  return events.size() == 1 && std::holds_alternative<Event>(events.front());
}

TEST(AlonePeers, answers_at_once_what_others_would_answer_later) {
  AlonePeers peers;
  EXPECT_TRUE(peers.alone());
  EXPECT_TRUE(is_one<PrepareEpoch>(peers.tell(LocalsChanged{{0, 1}, {}, NodeDeclared{}})));
  EXPECT_TRUE(is_one<ConnectEpoch>(peers.tell(LocalsReady{7, "plan", "policies", false})));
  EXPECT_TRUE(is_one<BeginEpoch>(peers.tell(LocalsConnected{7})));
  EXPECT_TRUE(is_one<AttemptRefused>(peers.tell(LocalsFailed{8, {}})));
  EXPECT_TRUE(is_one<EpochEnded>(peers.tell(LocalsLeft{})));
  EXPECT_TRUE(peers.vote({8, "result", std::nullopt}));
}

TEST(AlonePeers, answers_for_all_ranks_with_the_epoch_that_was_said) {
  AlonePeers peers;
  const PeerEvents prepare = peers.tell(LocalsChanged{{0, 1, 2}, {}, NodeDeclared{}});
  EXPECT_EQ(std::get<PrepareEpoch>(prepare.front()).node_of_rank, (std::vector<NodeNumber>{0, 0, 0}));
  const PeerEvents connect = peers.tell(LocalsReady{7, "plan", "policies", false});
  EXPECT_EQ(std::get<ConnectEpoch>(connect.front()).epoch, 7U);
  const PeerEvents begin = peers.tell(LocalsConnected{7});
  EXPECT_EQ(std::get<BeginEpoch>(begin.front()).epoch, 7U);
}

TEST(AlonePeers, says_nothing_to_what_only_other_nodes_would_hear) {
  AlonePeers peers;
  EXPECT_TRUE(peers.tell(LocalsChanged{{0, 1}, {}, std::nullopt}).empty());
  EXPECT_TRUE(peers.tell(LocalsPaused{}).empty());
  EXPECT_TRUE(peers.tell(LocalsOverdue{}).empty());
  EXPECT_TRUE(peers.tell(LocalsMissing{}).empty());
}

}  // namespace
}  // namespace gradsync::engine
