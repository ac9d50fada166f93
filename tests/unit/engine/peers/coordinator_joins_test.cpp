// Which nodes the coordinator lets take part, and what it rules on attempts that they are in doubt about.

#include "unit/engine/peers/machine_states.hpp"

#include <gtest/gtest.h>

#include <functional>

namespace gradsync::engine {
namespace {

/// The coordinator's node and node 1 have joined; node 2 comes over link 2, from the address that it says.
CoordinatorActions comes(LedCoordinator& led, const PeerJoin& join, const std::string& seen = "10.0.0.2") {
  (void)led.machine.on_link(led.now, 2, seen);
  return led.by(2, join);
}

struct RefusedRow {
  const char* what;
  std::function<void(PeerJoin&)> change;
  ErrorCode code;
  const char* message;
};

TEST(CoordinatorJoins, refuses_by_name_with_both_values_and_addresses) {
  const std::vector<RefusedRow> rows{
      {"another world size",
       [](PeerJoin& join) { join.world_size = 4; },
       ErrorCode::JobMismatch,
       "node 'n2' (10.0.0.2) has world_size 4, and node 'n0' has 3"},
      {"other meshes",
       [](PeerJoin& join) { join.meshes.emplace_back(); },
       ErrorCode::JobMismatch,
       "node 'n2' (10.0.0.2) has world_size 3, and node 'n0' has 3, with other meshes"},
      {"an older start of the job",
       [](PeerJoin& join) { join.restart_count = -1; },
       ErrorCode::Superseded,
       "node 'n2' (10.0.0.2) has restart_count -1, and node 'n0' has 0"},
      {"too many ranks",
       [](PeerJoin& join) { join.local_world_size = 2; },
       ErrorCode::JobMismatch,
       "with node 'n2' (10.0.0.2) the nodes have 4 ranks, and world_size is 3"},
      {"an address that was translated",
       [](PeerJoin& join) { join.address = "192.168.0.2"; },
       ErrorCode::NodeRefused,
       "node 'n2' has the address 192.168.0.2, and node 'n0' sees it as 10.0.0.2"},
      {"a rank that node 1 holds",
       [](PeerJoin& join) { join.ranks = {1}, join.declared = declared_of(1); },
       ErrorCode::RankInUse,
       "node 'n1' (10.0.0.1) holds a rank that node 'n2' (10.0.0.2) claims"},
      {"a rank twice",
       [](PeerJoin& join) {
         join.ranks = {2, 2};
       },
       ErrorCode::InternalError,
       "node 'n2' (10.0.0.2) names a rank twice"},
      {"a rank outside of the world",
       [](PeerJoin& join) { join.ranks = {3}; },
       ErrorCode::InternalError,
       "node 'n2' (10.0.0.2) names a rank outside of world_size 3"},
      {"more ranks than it may have",
       [](PeerJoin& join) { join.local_world_size = 0; },
       ErrorCode::InternalError,
       "node 'n2' (10.0.0.2) has 1 ranks and local_world_size 0"},
      {"declarations of other ranks",
       [](PeerJoin& join) { join.declared = declared_of(1); },
       ErrorCode::InternalError,
       "node 'n2' (10.0.0.2) declares other ranks than are attached"},
      {"declarations of no rank",
       [](PeerJoin& join) { join.ranks = {}, join.declared->by_content = {}; },
       ErrorCode::InternalError,
       "node 'n2' (10.0.0.2) declares other ranks than are attached"},
      {"fingerprints that it does not have",
       [](PeerJoin& join) { join.declared->by_content[0].weights = 0; },
       ErrorCode::InternalError,
       "node 'n2' (10.0.0.2) names fingerprints that it does not have"},
  };
  for (const RefusedRow& row : rows) {
    LedCoordinator led;
    PeerJoin join = LedCoordinator::join_of(2, 2);
    row.change(join);
    const CoordinatorActions actions = comes(led, join);
    EXPECT_EQ(words_of(actions), "2:refused close 2") << row.what;
    EXPECT_EQ(sent<PeerRefused>(actions).error.code, row.code) << row.what;
    EXPECT_EQ(sent<PeerRefused>(actions).error.message, row.message);
    EXPECT_EQ(words_of(led.by(2, LedCoordinator::join_of(2, 2, 9))), "") << "its link is not read any more";
  }
}

TEST(CoordinatorJoins, a_link_over_loopback_does_not_go_with_one_over_a_network) {
  LedCoordinator led;
  PeerJoin join = LedCoordinator::join_of(2, 2);
  join.address = "127.0.0.1";
  const CoordinatorActions actions = comes(led, join, "127.0.0.1");
  EXPECT_EQ(sent<PeerRefused>(actions).error.code, ErrorCode::NodeRefused);
}

TEST(CoordinatorJoins, there_are_no_more_nodes_than_it_serves) {
  SomeDeclarations declarations;
  CoordinatorMachine machine({{0, "job"}, "a", "1", "n0", 1, 1}, declarations);
  (void)machine.on_own(kNow, LedCoordinator::join_of(0, 0));
  (void)machine.on_link(kNow, 2, "10.0.0.2");
  const CoordinatorActions actions = machine.on_message(kNow, 2, LedCoordinator::join_of(2, 2));
  EXPECT_EQ(sent<PeerRefused>(actions).error.code, ErrorCode::LimitExceeded);
}

TEST(CoordinatorJoins, what_node_0_says_of_the_job_counts_also_when_it_comes_last) {
  LedCoordinator led;
  PeerJoin own = LedCoordinator::join_of(0, 0, 2);
  own.world_size = 5;
  const CoordinatorActions actions = led.own(own);
  EXPECT_EQ(words_of(actions), "1:refused close 1");
  EXPECT_EQ(sent<PeerRefused>(actions).error.code, ErrorCode::JobMismatch);
}

TEST(CoordinatorJoins, a_later_start_of_the_job_supersedes_all_others_once) {
  LedCoordinator led;
  PeerJoin join = LedCoordinator::join_of(2, 2);
  join.restart_count = 1;
  join.world_size = 4;
  const CoordinatorActions actions = comes(led, join);
  EXPECT_EQ(words_of(actions), "own:refused 1:refused close 1");
  EXPECT_EQ(sent<PeerRefused>(actions).error.code, ErrorCode::Superseded);
  join.count = 2;
  EXPECT_EQ(words_of(led.by(2, join)), "");
}

TEST(CoordinatorJoins, node_0_of_an_earlier_start_than_the_others_is_refused_and_its_next_start_taken) {
  LedCoordinator led;
  for (const NodeNumber node : {1U, 2U}) {
    PeerJoin join = LedCoordinator::join_of(node, node + 2);
    join.restart_count = 1;
    (void)led.machine.on_link(led.now, node + 2, join.address);
    (void)led.by(node + 2, join);
  }
  const CoordinatorActions actions = led.own(LedCoordinator::join_of(0, 0, 2));
  EXPECT_EQ(words_of(actions), "own:refused");
  EXPECT_EQ(sent<PeerRefused>(actions).error.code, ErrorCode::Superseded);
  EXPECT_EQ(led.machine.state(), LedCoordinator::State::Gathering) << "nodes of two starts are not in one epoch";
  PeerJoin own = LedCoordinator::join_of(0, 0, 3);
  own.restart_count = 1;
  (void)led.own(own);
  EXPECT_EQ(led.machine.state(), LedCoordinator::State::Preparing);
}

TEST(CoordinatorJoins, a_join_of_an_earlier_life_closes_its_link_also_when_the_later_one_has_ended) {
  LedCoordinator led;
  (void)led.machine.on_link(kNow, 3, "10.0.0.1");
  (void)led.join(1, 4);
  EXPECT_EQ(words_of(led.by(3, LedCoordinator::join_of(1, 3))), "close 3");
  (void)led.machine.on_link(kNow, 5, "10.0.0.1");
  (void)led.join(1, 6);
  (void)led.machine.on_link_ended(kNow, 6, "reset");
  EXPECT_EQ(words_of(led.by(5, LedCoordinator::join_of(1, 5))), "close 5");
}

TEST(CoordinatorJoins, what_comes_over_a_link_that_a_later_one_replaced_is_not_read) {
  LedCoordinator led(CoordinatorMachine::State::Begun);
  (void)led.join(1, 5);
  EXPECT_EQ(words_of(led.by(1, PeerWant{{"content"}})), "");
  EXPECT_EQ(words_of(led.machine.on_link_ended(kNow, 1, "reset")), "") << "and its end ends nothing";
}

TEST(CoordinatorJoins, a_join_that_crossed_with_a_roster_does_not_count_as_declared) {
  LedCoordinator led(CoordinatorMachine::State::Preparing);
  EXPECT_EQ(words_of(led.by(1, LedCoordinator::join_of(1, 1, 2))), "1:end 2:end own:end");
  for (const NodeNumber node : {0U, 2U}) {
    PeerJoin join = LedCoordinator::join_of(node, node, 2);
    join.epoch = kEpoch + 1;
    EXPECT_EQ(words_of(led.by(node, join)), "") << "node 1 has entered that epoch, or will join behind its end";
  }
  PeerJoin join = LedCoordinator::join_of(1, 1, 3);
  join.epoch = kEpoch + 1;
  EXPECT_EQ(words_of(led.by(1, join)), "1:prepare 2:prepare own:prepare");
}

TEST(CoordinatorJoins, a_challenge_of_another_link_or_another_node_on_a_link_closes_it) {
  LedCoordinator led;
  EXPECT_EQ(words_of(comes(led, LedCoordinator::join_of(2, 1))), "close 2");
  EXPECT_EQ(words_of(led.by(1, LedCoordinator::join_of(2, 1, 2))), "close 1");
}

TEST(CoordinatorJoins, a_rank_of_a_silent_node_is_waited_for_until_that_link_has_ended) {
  LedCoordinator led;
  led.now = kNow + std::chrono::seconds(4);
  PeerJoin join = LedCoordinator::join_of(2, 2);
  join.ranks = {1};
  join.declared = declared_of(1);
  EXPECT_EQ(words_of(comes(led, join)), "");
  const CoordinatorActions actions = led.machine.on_time(kNow + CoordinatorMachine::kDead);
  EXPECT_EQ(words_of(actions), "close 1 2:beat") << "the silent node is dead, and the other one takes its place";
  EXPECT_NE(led.machine.waits_for(), "");
  EXPECT_EQ(words_of(led.by(2, PeerWant{{"content"}})), "2:declaration") << "it has joined";
}

TEST(CoordinatorJoins, a_rank_of_a_silent_node_that_speaks_again_is_refused_to_the_other) {
  LedCoordinator led;
  led.now = kNow + std::chrono::seconds(4);
  PeerJoin join = LedCoordinator::join_of(2, 2);
  join.ranks = {1};
  join.declared = declared_of(1);
  EXPECT_EQ(words_of(comes(led, join)), "");
  EXPECT_EQ(words_of(led.by(1, PeerBeat{})), "2:refused close 2");
}

TEST(CoordinatorJoins, a_link_over_which_nothing_joins_and_one_that_says_nothing_are_closed) {
  LedCoordinator led;
  (void)led.machine.on_link(kNow, 9, "10.0.0.9");
  for (int second = 1; second <= 9; ++second) {
    led.now = kNow + std::chrono::seconds(second);
    (void)led.by(1, PeerBeat{});
    (void)led.by(9, PeerBeat{});
    EXPECT_EQ(words_of(led.machine.on_time(led.now)), "1:beat 9:beat");
  }
  EXPECT_EQ(words_of(led.machine.on_time(kNow + CoordinatorMachine::kJoinWithin)), "close 9 1:beat");
  EXPECT_EQ(words_of(led.machine.on_time(led.now + CoordinatorMachine::kDead)), "close 1");
}

/// What the records of the nodes say, and what node 1 is told that is in doubt about kWord.
struct RuledRow {
  const char* what;
  RecordWords own;
  RecordWords third;  ///< of node 2
  bool declared;      ///< all of node 2 have
  std::optional<Verdict> verdict;
};

TEST(CoordinatorRulings, come_as_soon_as_a_record_that_says_it_is_known) {
  const RecordWords fresh;
  const std::vector<RuledRow> rows{
      {"the own record says done", {0, kWord, true}, fresh, false, Verdict::Done},
      {"another record says done", fresh, {0, kWord, true}, false, Verdict::Done},
      {"the own record does not say done", {0, kWord - 1, true}, fresh, false, Verdict::Failed},
      {"the own record is in doubt too", {kWord, kWord - 1, true}, fresh, false, Verdict::Failed},
      {"the own record is gone, and one rank has not declared", fresh, {0, kWord - 1, true}, false, std::nullopt},
      {"the own record is gone, and all have declared", fresh, {0, kWord - 1, true}, true, Verdict::Unknown},
  };
  for (const RuledRow& row : rows) {
    for (const bool declared : {false, true}) {
      LedCoordinator led(CoordinatorMachine::State::Gathering);
      SomeDeclarations declarations;
      CoordinatorMachine machine({{0, "job"}, "a", "1", "n0", 1}, declarations);
      PeerJoin own = LedCoordinator::join_of(0, 0);
      own.words = row.own;
      CoordinatorActions all = machine.on_own(kNow, own);
      for (NodeNumber node = 1; node < 3; ++node) {
        (void)machine.on_link(kNow, node, "10.0.0." + std::to_string(node));
        PeerJoin join = LedCoordinator::join_of(node, node);
        join.words = node == 1 ? RecordWords{kWord, kWord - 1, true} : row.third;
        if ((node == 1 && !declared) || (node == 2 && !row.declared)) {
          join.declared.reset();
        }
        for (CoordinatorAction& action : machine.on_message(kNow, node, join)) {
          all.push_back(std::move(action));
        }
      }
      const auto verdict = row.verdict == Verdict::Unknown && !declared ? std::nullopt : row.verdict;
      if (!verdict) {
        EXPECT_THROW((void)sent<PeerRuling>(all), std::logic_error) << row.what;
      } else {
        EXPECT_EQ(sent<PeerRuling>(all).verdict, *verdict) << row.what;
        EXPECT_EQ(sent<PeerRuling>(all).word, kWord);
      }
    }
  }
}

TEST(CoordinatorRulings, come_before_the_roster_and_once) {
  LedCoordinator led;
  PeerJoin join = LedCoordinator::join_of(2, 2);
  join.words = {kWord, 0, true};
  EXPECT_EQ(words_of(comes(led, join)), "2:ruling 1:prepare 2:prepare own:prepare");
  EXPECT_EQ(words_of(led.by(1, LedCoordinator::join_of(1, 1, 2))), "1:end 2:end own:end");
}

TEST(CoordinatorRulings, an_attempt_that_this_coordinator_committed_is_done) {
  LedCoordinator led(CoordinatorMachine::State::Begun, CoordinatorMachine::Phase::Voting);
  (void)led.all(PeerVote{kWord, "result"});
  (void)led.machine.on_link(kNow, 5, "10.0.0.1");
  PeerJoin join = LedCoordinator::join_of(1, 5);
  join.words = {kWord, kWord - 1, true};
  join.declared.reset();
  const CoordinatorActions actions = led.by(5, join);
  EXPECT_EQ(words_of(actions), "close 1 2:end own:end 5:ruling");
  EXPECT_EQ(sent<PeerRuling>(actions).verdict, Verdict::Done);
  EXPECT_EQ(sent<PeerEnd>(actions).failed_word, kWord + 1);
}

TEST(CoordinatorNode, what_it_says_to_its_own_member_is_behind_what_it_said_before) {
  SomeDeclarations declarations;
  MemberMachine::Options options = LedMember::options();
  options.identity.node = options.identity.node_id = "n0";
  options.identity.world_size = 1;
  options.coordinator.clear();
  CoordinatorNode node({{0, "job"}, "a", "1", "n0", 1}, std::move(options), declarations);
  const NodeActions actions = node.on_local(kNow, LocalsChanged{{0}, {kWord, kWord - 1, true}, declared_of(0)});
  EXPECT_EQ(words_of(actions), "VerdictReached PrepareEpoch") << "a roster does not overtake a ruling";
  EXPECT_EQ(words_of(node.on_local(kNow, LocalsReady{1, "plan", "policies", false})), "ConnectEpoch");
  EXPECT_EQ(words_of(node.on_local(kNow, LocalsConnected{1})), "BeginEpoch");
  const std::uint64_t word = attempt_word({1, 0});
  EXPECT_EQ(words_of(node.on_local(kNow, LocalsAsked{ask_of(word)})), "SumsKnown");
  EXPECT_EQ(words_of(node.on_local(kNow, Voted{word, "result", std::nullopt})), "StoreDone VerdictReached");
}

}  // namespace
}  // namespace gradsync::engine
