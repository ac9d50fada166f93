// The member's table in docs/peer-protocol.md: each row is a case, each state a column.

#include "engine/peers/member_machine.hpp"

#include "unit/engine/peers/machine_states.hpp"

#include <gtest/gtest.h>

#include <array>
#include <functional>

namespace gradsync::engine {
namespace {

using State = MemberMachine::State;
using Phase = MemberMachine::Phase;

constexpr std::array kStates{
    State::Away, State::Joined, State::Preparing, State::Ready, State::Connected, State::Begun};

const char* name_of(State state) {
  return std::array{"Away", "Joined", "Preparing", "Ready", "Connected", "Begun"}[static_cast<std::size_t>(state)];
}

/// What follows, and the state then: "ready → Ready"; an empty column: nothing, and the state stays.
struct EpochRow {
  const char* event;
  std::function<MemberActions(LedMember&)> happen;
  std::array<const char*, 6> follows;
};

MemberActions say(LedMember& led, ToMember message) { return led.told_by(std::move(message)); }

const Error kLostNode = make_error(ErrorCode::NodeLost, "n2 is lost");

const std::vector<EpochRow>& epoch_rows() {
  static const std::vector<EpochRow> rows{
      {"local ranks changed",
       [](LedMember& led) {
         return led.local(LocalsChanged{{1}, {}, declared_of(1)});
       },
       {"",
        "join → Joined",
        "EpochEnded join → Joined",
        "EpochEnded join → Joined",
        "EpochEnded join → Joined",
        "EpochEnded join → Joined"}},
      {"hello",
       [](LedMember& led) {
         return say(led, PeerHello{3, "a", "1", kPeerProtocol, "n0", "10.0.0.1"});
       },
       {"join → Joined", "", "", "", "", ""}},
      {"hello of another release",
       [](LedMember& led) {
         return say(led, PeerHello{3, "a", "2", kPeerProtocol, "n0", "10.0.0.1"});
       },
       {"drop EpochRefused → Away", "", "", "", "", ""}},
      {"link ended",
       [](LedMember& led) { return led.machine.on_link_ended(kNow, "reset"); },
       {"", " → Away", "EpochEnded → Away", "EpochEnded → Away", "EpochEnded → Away", "EpochEnded → Away"}},
      {"refused",
       [](LedMember& led) { return say(led, PeerRefused{make_error(ErrorCode::JobMismatch, "no")}); },
       {"EpochRefused → Away",
        "EpochRefused → Away",
        "EpochRefused → Away",
        "EpochRefused → Away",
        "EpochRefused → Away",
        "EpochEnded → Away"}},
      {"want",
       [](LedMember& led) { return say(led, PeerWant{{"content"}}); },
       {"",
        "declaration → Joined",
        "declaration → Preparing",
        "declaration → Ready",
        "declaration → Connected",
        "declaration → Begun"}},
      {"declaration",
       [](LedMember& led) {
         return say(led, PeerDeclaration{"content", 0, 1, {}, {}});
       },
       {"", "", "", "", "", ""}},
      {"policies are wanted",
       [](LedMember& led) {
         return say(led, PeerPolicies{kEpoch, 0, 1, ""});
       },
       {"", "", "", "PoliciesWanted → Ready", "", ""}},
      {"policies",
       [](LedMember& led) {
         return say(led, PeerPolicies{kEpoch, 0, 1, "state"});
       },
       {"", "", "", "PoliciesGiven → Ready", "", ""}},
      {"policies of another epoch",
       [](LedMember& led) {
         return say(led, PeerPolicies{kEpoch - 1, 0, 1, "state"});
       },
       {"", "", "", "", "", ""}},
      {"ruling without a doubt",
       [](LedMember& led) {
         return say(led, PeerRuling{kWord, Verdict::Done});
       },
       {"", "", "", "", "", ""}},
      {"prepare, a later epoch",
       [](LedMember& led) { return say(led, prepare_of(kEpoch + 1)); },
       {"", "PrepareEpoch → Preparing", "", "", "", ""}},
      {"plan loaded",
       [](LedMember& led) {
         return led.local(LocalsReady{kEpoch, "plan", "policies", false});
       },
       {"", "", "ready → Ready", "ready → Ready", "", ""}},
      {"plan of another epoch loaded",
       [](LedMember& led) {
         return led.local(LocalsReady{kEpoch + 1, "plan", "policies", false});
       },
       {"", "", "", "", "", ""}},
      {"plan or load refused",
       [](LedMember& led) { return led.local(LocalsLeft{make_error(ErrorCode::PlanMismatch, "no")}); },
       {"",
        "join → Joined",
        "leave EpochEnded join → Joined",
        "leave EpochEnded join → Joined",
        "leave EpochEnded join → Joined",
        "leave EpochEnded join → Joined"}},
      {"connect",
       [](LedMember& led) { return say(led, PeerConnect{kEpoch}); },
       {"", "", "", "ConnectEpoch → Connected", "", ""}},
      {"connect of another epoch",
       [](LedMember& led) { return say(led, PeerConnect{kEpoch + 1}); },
       {"", "", "", "", "", ""}},
      {"connected",
       [](LedMember& led) { return led.local(LocalsConnected{kEpoch}); },
       {"", "", "", "", "connected → Connected", ""}},
      {"begin", [](LedMember& led) { return say(led, PeerBegin{kEpoch}); }, {"", "", "", "", "BeginEpoch → Begun", ""}},
      {"begin of another epoch",
       [](LedMember& led) { return say(led, PeerBegin{kEpoch - 1}); },
       {"", "", "", "", "", ""}},
      {"end, a node was lost",
       [](LedMember& led) {
         return say(led, PeerEnd{kEpoch, 0, kLostNode});
       },
       {"",
        "join → Joined",
        "EpochEnded join → Joined",
        "EpochEnded join → Joined",
        "EpochEnded join → Joined",
        "EpochEnded join → Joined"}},
      {"end, the plans differ",
       [](LedMember& led) {
         return say(led, PeerEnd{kEpoch, 0, make_error(ErrorCode::PlanMismatch, "they differ")});
       },
       {"",
        "join → Joined",
        "EpochRefused join → Joined",
        "EpochRefused join → Joined",
        "EpochRefused join → Joined",
        "EpochEnded join → Joined"}},
      {"end of another epoch",
       [](LedMember& led) {
         return say(led, PeerEnd{kEpoch - 1, 0, kLostNode});
       },
       {"", "join → Joined", "", "", "", ""}},
      {"done of another attempt",
       [](LedMember& led) { return say(led, PeerDone{kWord + 1}); },
       {"", "", "", "", "", ""}},
      {"abort of another attempt",
       [](LedMember& led) {
         return say(led, PeerAbort{kWord + 1, kLostNode});
       },
       {"", "", "", "", "", ""}},
      {"pause of a rank elsewhere",
       [](LedMember& led) { return say(led, PeerPause{{0}}); },
       {"", "", "PeersPaused → Preparing", "PeersPaused → Ready", "PeersPaused → Connected", "PeersPaused → Begun"}},
      {"pause of a rank here",
       [](LedMember& led) { return led.local(LocalsPaused{{1}}); },
       {"", "pause → Joined", "pause → Preparing", "pause → Ready", "pause → Connected", "pause → Begun"}},
      {"beat", [](LedMember& led) { return say(led, PeerBeat{}); }, {"", "", "", "", "", ""}},
  };
  return rows;
}

TEST(MemberMachine, does_in_every_state_what_the_table_says) {
  for (const EpochRow& row : epoch_rows()) {
    for (const State state : kStates) {
      LedMember led(state);
      ASSERT_EQ(led.machine.state(), state);
      const MemberActions actions = row.happen(led);
      const std::string expected = row.follows[static_cast<std::size_t>(state)];
      const std::string follows = words_of(actions) + " → " + name_of(led.machine.state());
      EXPECT_EQ(follows, expected.empty() ? std::string(" → ") + name_of(state) : expected)
          << row.event << " in " << name_of(state);
    }
  }
}

TEST(MemberMachine, joins_with_what_it_is_and_counts_its_joins_on_a_link) {
  LedMember led;
  const auto first = sent<PeerJoin>(led.told_by(PeerHello{3, "a", "1", kPeerProtocol, "n0", "10.0.0.1"}));
  EXPECT_EQ(first.challenge, 3U);
  EXPECT_EQ(first.count, 1U);
  EXPECT_EQ(first.address, "10.0.0.1");
  EXPECT_EQ(first.epoch, 0U);
  EXPECT_TRUE(first.declared);
  EXPECT_EQ(sent<PeerJoin>(led.local(LocalsChanged{{1}, {}, std::nullopt})).count, 2U);
  (void)led.machine.on_link_ended(kNow, "reset");
  (void)led.machine.on_time(kNow + MemberMachine::kFirstRetry);
  (void)led.machine.on_link(kNow, "10.0.0.1");
  EXPECT_EQ(sent<PeerJoin>(led.told_by(PeerHello{4, "a", "1", kPeerProtocol, "n0", "10.0.0.1"})).count, 1U);
}

TEST(MemberMachine, reads_nothing_of_a_link_that_has_ended) {
  LedMember led(State::Joined);
  (void)led.machine.on_link_ended(kNow, "reset");
  EXPECT_EQ(words_of(led.told_by(PeerHello{3, "a", "1", kPeerProtocol, "n0", "10.0.0.1"})), "");
  EXPECT_EQ(words_of(led.told_by(PeerRefused{make_error(ErrorCode::JobMismatch, "no")})), "");
  EXPECT_EQ(led.machine.state(), State::Away);
}

TEST(MemberMachine, survivors_of_an_epoch_join_for_the_next_and_take_no_lower_one) {
  LedMember led(State::Begun);
  const MemberActions actions = led.told_by(PeerEnd{kEpoch, 0, kLostNode});
  EXPECT_EQ(sent<PeerJoin>(actions).epoch, kEpoch + 1);
  EXPECT_EQ(told<EpochEnded>(actions).error.epoch, kEpoch + 1);
  EXPECT_EQ(words_of(led.told_by(prepare_of(kEpoch))), "");
  EXPECT_EQ(words_of(led.told_by(prepare_of(kEpoch + 1))), "PrepareEpoch");
}

TEST(MemberMachine, forgets_what_was_declared_where_a_rank_of_another_node_declared_anew) {
  Error anew = make_error(ErrorCode::StaleEpoch, "rank 0 declared its gradients anew");
  anew.rank = 0;
  for (const State state : {State::Preparing, State::Ready, State::Connected, State::Begun}) {
    LedMember led(state);
    const MemberActions actions = led.told_by(PeerEnd{kEpoch, 0, anew});
    EXPECT_FALSE(sent<PeerJoin>(actions).declared);
    EXPECT_TRUE(told<EpochEnded>(actions).declared_elsewhere);
    EXPECT_EQ(words_of(led.told_by(prepare_of(kEpoch + 1))), "") << "of what does not count any more";
    EXPECT_TRUE(sent<PeerJoin>(led.local(LocalsChanged{{1}, {}, declared_of(1)})).declared);
  }
}

TEST(MemberMachine, joins_with_the_number_that_its_ranks_were_told_where_that_is_higher) {
  LedMember led(State::Begun);
  EXPECT_EQ(sent<PeerJoin>(led.told_by(PeerEnd{kEpoch, 0, kLostNode})).epoch, kEpoch + 1);
  LocalsChanged changed{{1}, {}, declared_of(1)};
  changed.epoch = kEpoch + 2;
  EXPECT_EQ(sent<PeerJoin>(led.local(changed)).epoch, kEpoch + 2);
  EXPECT_EQ(words_of(led.told_by(prepare_of(kEpoch + 1))), "") << "a rank of it was lost before it began";
  EXPECT_EQ(words_of(led.told_by(prepare_of(kEpoch + 2))), "PrepareEpoch");
  changed.epoch = 0;
  EXPECT_EQ(sent<PeerJoin>(led.local(changed)).epoch, kEpoch + 3) << "it does not fall";
}

TEST(MemberMachine, an_epoch_that_ended_before_it_was_entered_is_not_entered_late) {
  LedMember led(State::Joined);
  const MemberActions actions = led.told_by(PeerEnd{kEpoch, 0, kLostNode});
  EXPECT_EQ(sent<PeerJoin>(actions).epoch, kEpoch + 1);
  EXPECT_EQ(words_of(led.told_by(PeerEnd{kEpoch, 0, kLostNode})), "") << "it joins once for each end";
  EXPECT_EQ(words_of(led.told_by(prepare_of(kEpoch))), "");
  EXPECT_EQ(words_of(led.told_by(prepare_of(kEpoch + 1))), "PrepareEpoch");
}

TEST(MemberMachine, drops_a_roster_while_its_ranks_have_not_all_declared) {
  LedMember led(State::Joined);
  (void)led.local(LocalsChanged{{1}, {}, std::nullopt});
  EXPECT_EQ(words_of(led.told_by(prepare_of(kEpoch))), "");
  EXPECT_EQ(led.machine.state(), State::Joined);
}

TEST(MemberMachine, leaves_where_a_roster_does_not_have_each_rank_once) {
  const std::vector<std::function<void(PeerPrepare&)>> faults{
      [](PeerPrepare& prepare) { prepare.roster.own().pop_back(); },
      [](PeerPrepare& prepare) {
        prepare.roster.own()[0].by_content[0].ranks = {{1, 1}};
      },
      [](PeerPrepare& prepare) {
        prepare.roster.own()[0].by_content[0].ranks = {{-1, 1}};
      },
      [](PeerPrepare& prepare) {
        prepare.roster.own()[1].by_content[0].ranks = {{1, 9}};
      },
      [](PeerPrepare& prepare) { prepare.roster.own()[0].by_content[0].weights = 0; },
  };
  for (const auto& fault : faults) {
    LedMember led(State::Joined);
    PeerPrepare prepare = prepare_of(kEpoch);
    fault(prepare);
    EXPECT_EQ(words_of(led.told_by(std::move(prepare))), "leave EpochRefused join");
  }
}

/// A rank has come on another GPU since.
TEST(MemberMachine, drops_a_roster_that_has_its_ranks_on_other_devices) {
  LedMember led(State::Joined);
  PeerPrepare prepare = prepare_of(kEpoch);
  prepare.roster.own()[1].devices = {0};
  EXPECT_EQ(words_of(led.told_by(std::move(prepare))), "");
  EXPECT_EQ(led.machine.state(), State::Joined);
  EXPECT_EQ(words_of(led.told_by(prepare_of(kEpoch))), "PrepareEpoch");
}

TEST(MemberMachine, plans_when_the_declarations_of_the_others_are_here_with_fingerprints_by_rank) {
  LedMember led(State::Joined);
  PeerPrepare prepare = prepare_of(kEpoch, "absent");
  prepare.weight_fingerprints = {{"f0", "f1"}};
  prepare.roster.own()[0].by_content[0].weights = 0;
  const MemberActions wanting = led.told_by(std::move(prepare));
  EXPECT_EQ(words_of(wanting), "want");
  EXPECT_EQ(sent<PeerWant>(wanting).hashes, std::vector<ContentHash>{"absent"});
  const MemberActions actions = led.told_by(PeerDeclaration{"absent", 0, 1, {}, {}});
  EXPECT_EQ(words_of(actions), "PrepareEpoch");
  const auto& plan = told<PrepareEpoch>(actions);
  EXPECT_EQ(plan.epoch, kEpoch);
  EXPECT_EQ(plan.node_of_rank, (std::vector<NodeNumber>{0, 1}));
  ASSERT_TRUE(plan.weights[0]);
  EXPECT_EQ(*plan.weights[0], (WeightFingerprints{"f0", "f1"}));
  EXPECT_FALSE(plan.weights[1]);
}

TEST(MemberMachine, leaves_where_a_declaration_is_not_what_its_hash_says) {
  LedMember led(State::Joined);
  (void)led.told_by(prepare_of(kEpoch, "absent"));
  EXPECT_EQ(words_of(led.told_by(PeerDeclaration{"false", 0, 1, {}, {}})), "leave EpochRefused join");
}

TEST(MemberMachine, sends_and_takes_the_state_of_policies_in_pages) {
  LedMember led(State::Ready);
  const std::string state(MemberMachine::kPolicyPage + 1, 's');
  const MemberActions actions = led.local(LocalPolicies{kEpoch, state});
  EXPECT_EQ(words_of(actions), "policies policies");
  EXPECT_EQ(sent<PeerPolicies>(actions).page, 1U);
  EXPECT_EQ(sent<PeerPolicies>(actions).pages, 2U);
  EXPECT_EQ(words_of(led.told_by(PeerPolicies{kEpoch, 0, 2, "sta"})), "");
  EXPECT_EQ(words_of(led.told_by(PeerPolicies{kEpoch, 0, 2, "sta"})), "") << "a page that comes twice counts once";
  const MemberActions given = led.told_by(PeerPolicies{kEpoch, 1, 2, "te"});
  EXPECT_EQ(told<PoliciesGiven>(given).state, "state");
  EXPECT_EQ(words_of(led.local(LocalsReady{kEpoch, "plan", "others", false})), "ready");
}

TEST(MemberMachine, leaves_where_policies_have_nothing_to_send_or_too_much) {
  LedMember led(State::Ready);
  EXPECT_EQ(words_of(led.local(LocalPolicies{kEpoch, ""})), "leave EpochRefused join");
}

TEST(MemberMachine, says_again_who_is_paused_when_it_joins_again) {
  LedMember led(State::Begun);
  (void)led.local(LocalsPaused{{1}});
  EXPECT_EQ(words_of(led.told_by(PeerEnd{kEpoch, 0, kLostNode})), "EpochEnded join pause");
}

TEST(MemberMachine, a_pause_elsewhere_ends_with_the_epoch) {
  LedMember led(State::Begun);
  (void)led.told_by(PeerPause{{0}});
  EXPECT_EQ(words_of(led.told_by(PeerPause{{0}})), "") << "it is told once";
  const MemberActions actions = led.told_by(PeerEnd{kEpoch, 0, kLostNode});
  EXPECT_EQ(words_of(actions), "PeersPaused EpochEnded join");
  EXPECT_FALSE(told<PeersPaused>(actions).paused);
}

TEST(MemberMachine, tries_again_after_longer_and_longer_but_not_where_that_is_of_no_use) {
  LedMember led;
  Milliseconds most = MemberMachine::kFirstRetry;
  TimePoint now = kNow;
  for (int i = 0; i < 8; ++i) {
    (void)led.machine.on_link_ended(now, "refused");
    const TimePoint due = led.machine.next_deadline().value();
    EXPECT_GE(due - now, most / 2);
    EXPECT_LE(due - now, most);
    now = due;
    EXPECT_EQ(words_of(led.machine.on_time(now)), "open");
    most = std::min(2 * most, MemberMachine::kLongestRetry);
  }
  (void)led.machine.on_link(now, "10.0.0.1");
  (void)led.told_by(PeerHello{9, "a", "1", kPeerProtocol, "n0", "10.0.0.1"});
  (void)led.told_by(PeerRefused{make_error(ErrorCode::Superseded, "no")});
  EXPECT_EQ(led.machine.next_deadline(), std::nullopt);
  EXPECT_EQ(words_of(led.local(LocalsChanged{{1}, {}, declared_of(1)})), "EpochRefused")
      << "ranks that come later hear it too";
}

TEST(MemberMachine, what_was_declared_before_a_refusal_counts_no_more) {
  LedMember led(State::Joined);
  (void)led.told_by(PeerRefused{make_error(ErrorCode::RankInUse, "node 'n2' holds a rank")});
  (void)led.machine.on_time(led.machine.next_deadline().value());
  (void)led.machine.on_link(kNow, "10.0.0.1");
  const MemberActions joined = led.told_by(PeerHello{9, "a", "1", kPeerProtocol, "n0", "10.0.0.1"});
  ASSERT_EQ(words_of(joined), "join");
  const auto& sent = std::get<SendToCoordinator>(joined.front());
  EXPECT_FALSE(std::get<PeerJoin>(sent.message).declared) << "its ranks have heard that they have to declare again";
}

TEST(MemberMachine, a_link_that_says_nothing_is_dropped_and_beats_keep_it) {
  LedMember led(State::Begun);
  EXPECT_EQ(words_of(led.machine.on_time(kNow + MemberMachine::kBeat)), "beat");
  (void)led.machine.on_message(kNow + std::chrono::seconds(3), PeerBeat{});
  EXPECT_EQ(words_of(led.machine.on_time(kNow + MemberMachine::kDead)), "beat");
  const MemberActions actions = led.machine.on_time(kNow + std::chrono::seconds(8));
  EXPECT_EQ(words_of(actions), "drop EpochEnded");
  EXPECT_EQ(told<EpochEnded>(actions).error.code, ErrorCode::NodeLost);
}

TEST(MemberMachine, the_loss_of_the_coordinator_names_its_node_and_the_ranks_there) {
  LedMember led(State::Begun);
  const Error error = told<EpochEnded>(led.machine.on_link_ended(kNow, "reset")).error;
  EXPECT_EQ(error.code, ErrorCode::NodeLost);
  EXPECT_EQ(error.node, "n0");
  EXPECT_EQ(error.ranks, std::vector<std::int64_t>{0});
}

}  // namespace
}  // namespace gradsync::engine
