// The coordinator's table in docs/peer-protocol.md: each row is a case, each state a column.

#include "unit/engine/peers/machine_states.hpp"

#include <gtest/gtest.h>

#include <array>
#include <functional>

namespace gradsync::engine {
namespace {

using CoordinatorState = CoordinatorMachine::State;

constexpr std::array kCoordinatorStates{
    CoordinatorState::Gathering, CoordinatorState::Preparing, CoordinatorState::Connecting, CoordinatorState::Begun};

const char* name_of_state(CoordinatorState state) {
  return std::array{"Gathering", "Preparing", "Connecting", "Begun"}[static_cast<std::size_t>(state)];
}

/// What follows, and the state then. In Gathering nodes 0 and 1 have joined, else all three. An empty column: nothing,
/// and the state stays.
struct FormRow {
  const char* event;
  std::function<CoordinatorActions(LedCoordinator&)> happen;
  std::array<const char*, 4> follows;
};

PeerLeave leave_of(std::uint64_t epoch) { return {epoch, make_error(ErrorCode::RankLost, "rank 1")}; }

const std::vector<FormRow>& form_rows() {
  static const std::vector<FormRow> rows{
      {"link",
       [](LedCoordinator& led) { return led.machine.on_link(kNow, 9, "10.0.0.9"); },
       {"9:hello → Gathering", "9:hello → Preparing", "9:hello → Connecting", "9:hello → Begun"}},
      {"join of the last node",
       [](LedCoordinator& led) { return led.join(2, 5); },
       {"1:prepare 5:prepare own:prepare → Preparing",
        "close 2 1:end own:end → Gathering",
        "close 2 1:end own:end → Gathering",
        "close 2 1:end own:end → Gathering"}},
      {"join, newer, over the same link",
       [](LedCoordinator& led) { return led.by(1, LedCoordinator::join_of(1, 1, 2)); },
       {"", "1:end 2:end own:end → Gathering", "1:end 2:end own:end → Gathering", "1:end 2:end own:end → Gathering"}},
      {"join, repeated",
       [](LedCoordinator& led) { return led.by(1, LedCoordinator::join_of(1, 1, 1)); },
       {"", "", "", ""}},
      {"link of a member ended",
       [](LedCoordinator& led) { return led.machine.on_link_ended(kNow, 1, "reset"); },
       {"", "2:end own:end → Gathering", "2:end own:end → Gathering", "2:end own:end → Gathering"}},
      {"another link ended",
       [](LedCoordinator& led) { return led.machine.on_link_ended(kNow, 7, "reset"); },
       {"", "", "", ""}},
      {"leave",
       [](LedCoordinator& led) { return led.by(1, leave_of(kEpoch)); },
       {"", "1:end 2:end own:end → Gathering", "1:end 2:end own:end → Gathering", "1:end 2:end own:end → Gathering"}},
      {"leave of another epoch", [](LedCoordinator& led) { return led.by(1, leave_of(kEpoch - 1)); }, {"", "", "", ""}},
      {"all ready",
       [](LedCoordinator& led) {
         return led.all(PeerReady{kEpoch, "plan", "policies", false});
       },
       {"", "1:connect 2:connect own:connect → Connecting", "", ""}},
      {"all ready in another epoch",
       [](LedCoordinator& led) {
         return led.all(PeerReady{kEpoch - 1, "plan", "policies", false});
       },
       {"", "", "", ""}},
      {"all connected",
       [](LedCoordinator& led) { return led.all(PeerConnected{kEpoch}); },
       {"", "", "1:begin 2:begin own:begin → Begun", ""}},
      {"all connected in another epoch",
       [](LedCoordinator& led) { return led.all(PeerConnected{kEpoch - 1}); },
       {"", "", "", ""}},
      {"want",
       [](LedCoordinator& led) { return led.by(1, PeerWant{{"content"}}); },
       {"1:declaration → Gathering",
        "1:declaration → Preparing",
        "1:declaration → Connecting",
        "1:declaration → Begun"}},
      {"120 s",
       [](LedCoordinator& led) {
         for (led.now = kNow; led.now < kNow + std::chrono::seconds(119); led.now += std::chrono::seconds(3)) {
           (void)led.by(1, PeerBeat{});
           (void)led.by(2, PeerBeat{});
         }
         led.now = kNow + CoordinatorMachine::kReady - std::chrono::milliseconds(1);
         (void)led.by(1, PeerBeat{});
         (void)led.by(2, PeerBeat{});
         (void)led.machine.on_time(led.now);
         return led.machine.on_time(kNow + CoordinatorMachine::kReady);
       },
       {"", "1:end 2:end own:end → Gathering", "1:end 2:end own:end → Gathering", ""}},
  };
  return rows;
}

TEST(CoordinatorMachine, does_in_every_state_what_the_table_says) {
  for (const FormRow& row : form_rows()) {
    for (const CoordinatorState state : kCoordinatorStates) {
      LedCoordinator led(state);
      ASSERT_EQ(led.machine.state(), state);
      const std::string expected = row.follows[static_cast<std::size_t>(state)];
      const std::string said = words_of(row.happen(led));
      const std::string follows = said + " → " + name_of_state(led.machine.state());
      EXPECT_EQ(follows, expected.empty() ? std::string(" → ") + name_of_state(state) : expected)
          << row.event << " in " << name_of_state(state);
    }
  }
}

TEST(CoordinatorMachine, the_roster_is_by_lowest_ranks_and_the_epoch_is_the_highest_that_was_said) {
  LedCoordinator led;
  PeerJoin last = LedCoordinator::join_of(2, 2);
  last.epoch = kEpoch + 4;
  (void)led.machine.on_link(kNow, 2, "10.0.0.2");
  const auto prepare = sent<PeerPrepare>(led.by(2, last));
  EXPECT_EQ(prepare.epoch, kEpoch + 4);
  EXPECT_EQ(prepare.coordinator, "a");
  ASSERT_EQ(prepare.roster.size(), 3U);
  EXPECT_EQ(prepare.roster[2].node, "n2");
  EXPECT_EQ(prepare.roster[2].by_content[0].ranks, (std::vector<RankSpan>{{2, 1}}));
}

TEST(CoordinatorMachine, an_epoch_of_new_daemons_has_a_number_of_its_own) {
  SomeDeclarations declarations;
  CoordinatorMachine machine({{0, "job"}, "a", "1", "n0", 4711}, declarations);
  PeerJoin own = LedCoordinator::join_of(0, 0);
  own.epoch = 0;
  own.world_size = 1;
  EXPECT_EQ(sent<PeerPrepare>(machine.on_own(kNow, own)).epoch, 4711U);
}

TEST(CoordinatorMachine, survivors_hear_the_number_of_the_next_epoch_and_who_was_lost) {
  LedCoordinator led(CoordinatorState::Begun);
  (void)led.by(2, ask_of(kWord));
  const auto end = sent<PeerEnd>(led.machine.on_link_ended(kNow, 1, "reset"));
  EXPECT_EQ(end.epoch, kEpoch);
  EXPECT_EQ(end.failed_word, kWord);
  EXPECT_EQ(end.error.code, ErrorCode::NodeLost);
  EXPECT_EQ(end.error.node, "n1");
  EXPECT_EQ(end.error.ranks, std::vector<std::int64_t>{1});
  EXPECT_EQ(end.error.epoch, kEpoch + 1);
}

TEST(CoordinatorMachine, an_epoch_that_has_not_begun_has_no_attempt_to_fail) {
  LedCoordinator led(CoordinatorState::Connecting);
  EXPECT_EQ(sent<PeerEnd>(led.machine.on_link_ended(kNow, 1, "reset")).failed_word, 0U);
}

TEST(CoordinatorMachine, plans_that_differ_end_the_epoch_and_both_nodes_are_named) {
  LedCoordinator led(CoordinatorState::Preparing);
  (void)led.by(0, PeerReady{kEpoch, "plan", "policies", false});
  (void)led.by(1, PeerReady{kEpoch, "plan", "policies", false});
  const auto end = sent<PeerEnd>(led.by(2, PeerReady{kEpoch, "other", "policies", false}));
  EXPECT_EQ(end.error.code, ErrorCode::PlanMismatch);
  EXPECT_EQ(end.error.message, "node 'n0' has plan plan and node 'n2' plan other");
}

TEST(CoordinatorMachine, settings_that_differ_are_named_with_both_values_and_nodes) {
  LedCoordinator led;
  PeerJoin last = LedCoordinator::join_of(2, 2);
  last.declared->settings.bucket_bytes = 5;
  (void)led.machine.on_link(kNow, 2, "10.0.0.2");
  const CoordinatorActions actions = led.by(2, last);
  EXPECT_EQ(words_of(actions), "1:prepare 2:prepare own:prepare 1:end 2:end own:end");
  EXPECT_EQ(sent<PeerEnd>(actions).error.message, "bucket_bytes is 0 on node 'n0' and 5 on node 'n2'");
}

TEST(CoordinatorMachine, a_node_whose_gradients_travel_otherwise_is_named_with_both_ways) {
  LedCoordinator led;
  PeerJoin last = LedCoordinator::join_of(2, 2);
  last.declared->settings.cpu_gradients = "nccl";
  (void)led.machine.on_link(kNow, 2, "10.0.0.2");
  const Error error = sent<PeerEnd>(led.by(2, last)).error;
  EXPECT_EQ(error.code, ErrorCode::PlanMismatch);
  EXPECT_EQ(error.message, "cpu_gradients is sockets on node 'n0' and nccl on node 'n2'");
}

TEST(CoordinatorMachine, equal_fingerprints_of_weights_travel_once) {
  LedCoordinator led;
  for (NodeNumber node = 0; node < 3; ++node) {
    PeerJoin join = LedCoordinator::join_of(node, node, 2);
    join.declared->weight_fingerprints = {{node == 2 ? "other" : "same"}};
    join.declared->by_content[0].weights = 0;
    if (node == 2) {
      (void)led.machine.on_link(kNow, 2, "10.0.0.2");
    }
    const CoordinatorActions actions = led.by(node, join);
    if (node == 2) {
      const auto prepare = sent<PeerPrepare>(actions);
      EXPECT_EQ(prepare.weight_fingerprints, (std::vector<WeightFingerprints>{{"same"}, {"other"}}));
      EXPECT_EQ(prepare.roster[1].by_content[0].weights, 0U);
      EXPECT_EQ(prepare.roster[2].by_content[0].weights, 1U);
    }
  }
}

TEST(CoordinatorMachine, fingerprints_that_no_message_has_room_for_are_refused) {
  LedCoordinator led;
  PeerJoin last = LedCoordinator::join_of(2, 2);
  last.declared->weight_fingerprints = {WeightFingerprints(1'000'000, "0123456789abcdef")};
  last.declared->by_content[0].weights = 0;
  (void)led.machine.on_link(kNow, 2, "10.0.0.2");
  const CoordinatorActions actions = led.by(2, last);
  EXPECT_TRUE(sent<PeerPrepare>(actions).weight_fingerprints.empty());
  EXPECT_EQ(sent<PeerEnd>(actions).error.code, ErrorCode::LimitExceeded);
}

TEST(CoordinatorMachine, waits_for_declarations_that_it_asked_for) {
  LedCoordinator led;
  PeerJoin last = LedCoordinator::join_of(2, 2);
  last.declared = declared_of(2, "absent");
  (void)led.machine.on_link(kNow, 2, "10.0.0.2");
  const CoordinatorActions wanting = led.by(2, last);
  EXPECT_EQ(words_of(wanting), "2:want");
  EXPECT_EQ(sent<PeerWant>(wanting).hashes, std::vector<ContentHash>{"absent"});
  EXPECT_EQ(words_of(led.by(2, PeerDeclaration{"absent", 0, 1, {}, {}})), "1:prepare 2:prepare own:prepare");
}

TEST(CoordinatorMachine, a_declaration_that_is_not_what_its_hash_says_refuses_its_node) {
  LedCoordinator led;
  EXPECT_EQ(words_of(led.by(1, PeerDeclaration{"false", 0, 1, {}, {}})), "1:refused close 1");
}

TEST(CoordinatorPolicies, go_from_the_lowest_node_that_remembers_to_those_that_differ) {
  LedCoordinator led(CoordinatorState::Preparing);
  (void)led.by(0, PeerReady{kEpoch, "plan", "nothing", true});
  (void)led.by(1, PeerReady{kEpoch, "plan", "policies", false});
  const CoordinatorActions asking = led.by(2, PeerReady{kEpoch, "plan", "older", false});
  EXPECT_EQ(words_of(asking), "1:policies");
  EXPECT_EQ(sent<PeerPolicies>(asking).state, "");
  EXPECT_EQ(words_of(led.by(1, PeerPolicies{kEpoch, 0, 1, "state"})), "own:policies 2:policies");
  EXPECT_EQ(words_of(led.by(2, PeerReady{kEpoch, "plan", "older", false})), "") << "it came before the state did";
  (void)led.by(0, PeerReady{kEpoch, "plan", "policies", false});
  EXPECT_EQ(words_of(led.by(2, PeerReady{kEpoch, "plan", "policies", false})), "1:connect 2:connect own:connect");
}

TEST(CoordinatorPolicies, a_node_that_does_not_take_over_the_state_ends_the_epoch) {
  LedCoordinator led(CoordinatorState::Preparing);
  (void)led.by(0, PeerReady{kEpoch, "plan", "policies", false});
  (void)led.by(1, PeerReady{kEpoch, "plan", "policies", false});
  (void)led.by(2, PeerReady{kEpoch, "plan", "older", false});
  (void)led.by(0, PeerPolicies{kEpoch, 0, 1, "state"});
  const auto end = sent<PeerEnd>(led.by(2, PeerReady{kEpoch, "plan", "a third", false}));
  EXPECT_EQ(end.error.code, ErrorCode::InternalError);
  EXPECT_EQ(end.error.node, "n2");
}

TEST(CoordinatorPauses, are_told_to_the_nodes_that_wait_for_the_paused_rank) {
  LedCoordinator led(CoordinatorState::Begun);
  EXPECT_EQ(words_of(led.by(1, PeerPause{{1}})), "own:pause 2:pause");
  EXPECT_EQ(words_of(led.by(1, PeerPause{{1}})), "") << "nothing has changed";
  const CoordinatorActions asked = led.by(1, ask_of(kWord));
  EXPECT_EQ(words_of(asked), "own:pause 2:pause") << "it is not waited for any more";
  EXPECT_TRUE(sent<PeerPause>(asked).ranks.empty());
}

TEST(CoordinatorPauses, of_further_ranks_are_told_to_nodes_that_waited_for_none) {
  LedCoordinator led(CoordinatorState::Begun);
  (void)led.by(1, PeerPause{{1}});
  const CoordinatorActions second = led.by(2, PeerPause{{2}});
  EXPECT_EQ(words_of(second), "1:pause");
  EXPECT_EQ(sent<PeerPause>(second).ranks, std::vector<std::int64_t>{2});
  EXPECT_EQ(words_of(led.by(1, ask_of(kWord))), "2:pause") << "the others wait for rank 2";
}

TEST(CoordinatorPauses, are_told_again_in_the_next_epoch) {
  LedCoordinator led(CoordinatorState::Begun);
  (void)led.by(1, PeerPause{{1}});
  (void)led.by(2, leave_of(kEpoch));
  for (NodeNumber node = 0; node < 3; ++node) {
    PeerJoin join = LedCoordinator::join_of(node, node, 2);
    join.epoch = kEpoch + 1;
    (void)led.by(node, join);
  }
  (void)led.by(1, PeerPause{{1}});
  (void)led.all(PeerReady{kEpoch + 1, "plan", "policies", false});
  EXPECT_EQ(words_of(led.all(PeerConnected{kEpoch + 1})), "1:begin 2:begin own:begin own:pause 2:pause");
}

}  // namespace
}  // namespace gradsync::engine
