// What the epoch machine wants done, event by event. Random sequences are in epoch_model_test.cpp.

#include "engine/epoch/epoch_machine.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gradsync::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using State = EpochMachine::State;

template <typename Action>
const Action* find(const EpochActions& actions) {
  for (const EpochAction& action : actions) {
    if (const auto* found = std::get_if<Action>(&action)) {
      return found;
    }
  }
  return nullptr;
}

EpochActions join(EpochActions first, const EpochActions& then) {
  first.insert(first.end(), then.begin(), then.end());
  return first;
}

/// A machine of two ranks that are attached, on a node that is alone: what it tells others is answered at once.
struct Pair {
  Pair() {
    machine.on_joined(0, {100, false});
    machine.on_joined(1, {101, false});
  }

  EpochActions declare(std::int64_t rank) { return machine.on_declared(now, rank, {Milliseconds(60'000), false}); }

  EpochActions check(std::int64_t rank) {
    EpochActions actions = machine.on_checked(now, rank, std::nullopt);
    return find<TellLocals>(actions) ? join(std::move(actions), machine.on_prepare(0)) : actions;
  }

  EpochActions plan() { return machine.on_planned(now, {"digest", std::nullopt, std::nullopt}); }

  EpochActions load() {
    EXPECT_TRUE(find<TellReady>(machine.on_lane_loaded()));
    return machine.on_begin();
  }

  EpochActions pass(Milliseconds time) { return machine.on_time(now += time); }

  /// Both declared, and their plan is on the lane.
  void commit() {
    for (const std::int64_t rank : {0, 1}) {
      (void)declare(rank);
      (void)check(rank);
    }
    (void)plan();
    (void)load();
  }

  std::uint64_t tickets = 1;
  TimePoint now{std::chrono::seconds(1000)};
  EpochMachine machine{"job", Roster(2, 2), 1, EngineDeadlines{}, tickets};
};

TEST(EpochMachine, plans_when_the_last_declaration_is_checked_and_commits_when_the_lane_has_the_plan) {
  Pair pair;
  (void)pair.declare(0);
  EXPECT_FALSE(find<MakePlan>(pair.check(0)));
  (void)pair.declare(1);
  const EpochActions planning = pair.check(1);
  ASSERT_TRUE(find<MakePlan>(planning));
  EXPECT_TRUE(pair.machine.plans(find<MakePlan>(planning)->ticket));
  EXPECT_TRUE(find<LoadPlan>(pair.plan()));
  EXPECT_EQ(pair.machine.state(), State::Loading);
  const EpochActions committed = pair.load();
  ASSERT_EQ(committed.size(), 4u);
  EXPECT_TRUE(std::holds_alternative<CommitPlan>(committed.front()));
  EXPECT_TRUE(std::holds_alternative<OpenSteps>(committed.back())) << "steps go on when every rank knows its plan";
  EXPECT_EQ(pair.machine.state(), State::Committed);
}

TEST(EpochMachine, counts_a_new_epoch_only_when_the_attempt_in_flight_has_failed) {
  Pair pair;
  pair.commit();
  const EpochActions left = pair.machine.on_left(pair.now, 1, "died", EpochMachine::Leaving::Lost);
  ASSERT_TRUE(find<FailAttempt>(left));
  EXPECT_EQ(find<FailAttempt>(left)->error.epoch, 2u);
  EXPECT_EQ(pair.machine.epoch(), 1u);
  EXPECT_EQ(pair.machine.coming_epoch(), 2u);
  EXPECT_FALSE(find<FailAttempt>(pair.machine.on_left(pair.now, 0, "died", EpochMachine::Leaving::Lost)))
      << "the attempt fails once";
  const EpochActions quiet = pair.machine.on_attempt_failed(pair.now);
  EXPECT_TRUE(find<UnloadPlan>(quiet) && find<FormEpoch>(quiet));
  EXPECT_EQ(pair.machine.epoch(), 2u);
}

TEST(EpochMachine, names_its_node_with_a_rank_that_is_lost) {
  std::uint64_t tickets = 1;
  EpochMachine machine{"job", Roster(4, 2), 1, EngineDeadlines{}, tickets, "node1"};
  machine.on_joined(2, {102, false});
  const EpochActions left = machine.on_left(TimePoint{}, 2, "died", EpochMachine::Leaving::Lost);
  ASSERT_TRUE(find<ReportLoss>(left));
  EXPECT_EQ(find<ReportLoss>(left)->error.node, "node1");
  EXPECT_EQ(find<ReportLoss>(left)->error.rank, 2);
}

TEST(EpochMachine, keeps_the_steps_of_survivors_where_the_newcomer_makes_the_same_plan) {
  Pair pair;
  pair.commit();
  (void)pair.machine.on_left(pair.now, 1, "died", EpochMachine::Leaving::Lost);
  (void)pair.machine.on_attempt_failed(pair.now);
  pair.machine.on_joined(1, {201, false});
  (void)pair.declare(1);
  (void)pair.check(1);
  (void)pair.plan();
  const EpochActions committed = pair.load();
  ASSERT_TRUE(find<CommitPlan>(committed));
  EXPECT_TRUE(find<CommitPlan>(committed)->keeps_steps);
}

TEST(EpochMachine, a_rank_that_dies_before_the_epoch_began_is_lost_when_nobody_took_its_place_for_ten_seconds) {
  Pair pair;
  (void)pair.declare(0);
  (void)pair.check(0);
  (void)pair.machine.on_left(pair.now, 1, "died: process 101 ended", EpochMachine::Leaving::Lost);
  EXPECT_EQ(pair.machine.next_deadline(), pair.now + EpochMachine::kSuccessor);
  EXPECT_FALSE(find<AnswerDeclare>(pair.pass(Milliseconds(9999))));
  const EpochActions due = pair.pass(Milliseconds(1));
  const auto* answer = find<AnswerDeclare>(due);
  ASSERT_TRUE(answer && answer->error);
  EXPECT_EQ(answer->rank, 0);
  EXPECT_EQ(answer->error->code, ErrorCode::RankLost);
  EXPECT_EQ(answer->error->rank, 1);
  EXPECT_THAT(answer->error->message, HasSubstr("rank 1 of job 'job' died: process 101 ended before the epoch began"));
  (void)pair.declare(0);
  EXPECT_EQ(pair.machine.next_deadline(), pair.now + EpochMachine::kSuccessor) << "the next call waits as long again";
}

TEST(EpochMachine, a_successor_in_time_has_all_the_time_to_declare) {
  Pair pair;
  (void)pair.declare(0);
  (void)pair.machine.on_left(pair.now, 1, "died", EpochMachine::Leaving::Lost);
  (void)pair.pass(Milliseconds(9999));
  pair.machine.on_joined(1, {201, false});
  EXPECT_FALSE(find<AnswerDeclare>(pair.pass(Milliseconds(30'000))));
}

TEST(EpochMachine, a_rank_that_leaves_by_choice_before_it_declared_is_waited_for) {
  Pair pair;
  (void)pair.declare(0);
  (void)pair.machine.on_left(pair.now, 1, "detached", EpochMachine::Leaving::ByChoice);
  EXPECT_FALSE(find<AnswerDeclare>(pair.pass(Milliseconds(30'000))));
}

/// Two of the job's four ranks are on this node.
struct PairOfFour {
  EpochActions declare(std::int64_t rank) {
    machine.on_joined(rank, {100 + rank, false});
    return declare_again(rank);
  }

  EpochActions declare_again(std::int64_t rank) {
    const EpochActions declared = machine.on_declared(now, rank, {Milliseconds(60'000), false});
    return join(declared, machine.on_checked(now, rank, std::nullopt));
  }

  EpochActions plan() { return machine.on_planned(now, {"digest", std::nullopt, std::nullopt}); }

  void commit() {
    (void)declare(1);
    (void)declare(3);
    (void)machine.on_prepare(7);
    (void)plan();
    (void)machine.on_lane_loaded();
    (void)machine.on_begin();
    ASSERT_EQ(machine.state(), State::Committed);
  }

  std::uint64_t tickets = 1;
  TimePoint now{std::chrono::seconds(1000)};
  EpochMachine machine{"job", Roster(4, 2), 1, EngineDeadlines{}, tickets};
};

TEST(EpochMachine, of_some_ranks_plans_when_all_nodes_have_declared_and_begins_when_all_have_loaded) {
  PairOfFour pair;
  EXPECT_EQ(pair.machine.lacks(), "2 of 2 ranks of this node not attached");
  EXPECT_FALSE(find<TellLocals>(pair.declare(3)));
  EXPECT_EQ(pair.machine.lacks(), "1 of 2 ranks of this node not attached");
  const EpochActions declared = pair.declare(1);
  ASSERT_TRUE(find<TellLocals>(declared));
  EXPECT_TRUE(find<TellLocals>(declared)->declared);
  EXPECT_FALSE(find<MakePlan>(declared));
  EXPECT_EQ(pair.machine.lacks(), "not all ranks of other nodes have declared");
  EXPECT_TRUE(find<MakePlan>(pair.machine.on_prepare(7)));
  EXPECT_EQ(pair.machine.epoch(), 7u);
  (void)pair.plan();
  const EpochActions loaded = pair.machine.on_lane_loaded();
  EXPECT_TRUE(find<TellReady>(loaded));
  EXPECT_FALSE(find<CommitPlan>(loaded)) << "another node may not have the plan";
  EXPECT_EQ(pair.machine.lacks(), "other nodes load the plan");
  EXPECT_TRUE(find<CommitPlan>(pair.machine.on_begin()));
  EXPECT_TRUE(pair.machine.seat(1).declaration.committed);
  EXPECT_TRUE(pair.machine.seat(3).declaration.committed);
}

TEST(EpochMachine, an_end_by_another_node_fails_the_attempt_and_keeps_what_was_declared) {
  PairOfFour pair;
  pair.commit();
  const EpochActions ended = pair.machine.on_ended(pair.now, make_error(ErrorCode::NodeLost, "node 'b' is gone"));
  ASSERT_TRUE(find<FailAttempt>(ended));
  EXPECT_EQ(find<FailAttempt>(ended)->error.code, ErrorCode::NodeLost);
  EXPECT_EQ(find<FailAttempt>(ended)->error.epoch, 8u);
  EXPECT_FALSE(find<TellLeft>(ended)) << "they know";
  const EpochActions quiet = pair.machine.on_attempt_failed(pair.now);
  EXPECT_EQ(pair.machine.state(), State::Gathering);
  EXPECT_FALSE(find<TellLocals>(quiet)) << "a second time would end the epoch that others prepare meanwhile";
  EXPECT_TRUE(find<MakePlan>(pair.machine.on_prepare(8)));
}

TEST(EpochMachine, knows_why_an_epoch_that_formed_while_ranks_waited_did_not_begin) {
  PairOfFour pair;
  const auto forms_and_ends = [&] {
    (void)pair.declare_again(1);
    (void)pair.declare_again(3);
    (void)pair.machine.on_prepare(7);
    (void)pair.machine.on_ended(pair.now, make_error(ErrorCode::NodeLost, "a communicator is lost"));
    EXPECT_EQ(pair.machine.state(), State::Gathering);
  };
  pair.machine.on_joined(1, {101, false});
  pair.machine.on_joined(3, {103, false});
  forms_and_ends();
  EXPECT_EQ(pair.machine.not_begun(), "a communicator is lost");
  EXPECT_TRUE(find<AnswerDeclare>(pair.machine.on_time(pair.now += Milliseconds(60'000))));
  EXPECT_EQ(pair.machine.not_begun(), "a communicator is lost") << "those who are told now are told why";
  (void)pair.declare_again(1);
  EXPECT_EQ(pair.machine.not_begun(), "") << "whoever waits now has waited for no epoch yet";
  forms_and_ends();
  (void)pair.machine.on_prepare(8);
  (void)pair.plan();
  (void)pair.machine.on_lane_loaded();
  (void)pair.machine.on_begin();
  EXPECT_EQ(pair.machine.not_begun(), "") << "an epoch has begun since";
}

TEST(EpochMachine, every_rank_declares_again_where_one_of_another_node_declared_anew) {
  PairOfFour pair;
  pair.commit();
  Error anew = make_error(ErrorCode::StaleEpoch, "rank 0 declared its gradients anew");
  anew.rank = 0;
  const EpochActions ended = pair.machine.on_declared_elsewhere(pair.now, anew);
  ASSERT_TRUE(find<FailAttempt>(ended));
  EXPECT_EQ(find<FailAttempt>(ended)->error.code, ErrorCode::StaleEpoch);
  (void)pair.machine.on_attempt_failed(pair.now);
  EXPECT_EQ(pair.machine.state(), State::Forming) << "what was declared before does not count";
  (void)pair.declare_again(1);
  EXPECT_EQ(pair.machine.state(), State::Forming);
  EXPECT_TRUE(find<TellLocals>(pair.declare_again(3)));
  EXPECT_EQ(pair.machine.state(), State::Gathering);
}

TEST(EpochMachine, what_was_declared_for_the_coming_epoch_is_said_again_where_another_rank_declared_anew) {
  PairOfFour pair;
  (void)pair.declare(1);
  (void)pair.declare(3);
  EXPECT_EQ(pair.machine.state(), State::Gathering);
  Error anew = make_error(ErrorCode::StaleEpoch, "rank 0 declared its gradients anew");
  anew.rank = 0;
  EXPECT_TRUE(find<TellLocals>(pair.machine.on_declared_elsewhere(pair.now, anew)));
  EXPECT_EQ(pair.machine.state(), State::Gathering);
}

TEST(EpochMachine, what_others_prepare_before_the_lane_is_quiet_is_planned_when_it_is) {
  PairOfFour pair;
  pair.commit();
  (void)pair.machine.on_ended(pair.now, make_error(ErrorCode::NodeLost, "node 'b' is gone"));
  EXPECT_FALSE(find<MakePlan>(pair.machine.on_prepare(8)));
  EXPECT_TRUE(find<MakePlan>(pair.machine.on_attempt_failed(pair.now)));
  EXPECT_EQ(pair.machine.epoch(), 8u);
}

TEST(EpochMachine, a_rank_that_is_lost_before_the_lane_is_quiet_takes_back_what_others_prepare) {
  PairOfFour pair;
  pair.commit();
  (void)pair.machine.on_ended(pair.now, make_error(ErrorCode::NodeLost, "node 'b' is gone"));
  (void)pair.machine.on_prepare(8);
  EXPECT_TRUE(find<TellLeft>(pair.machine.on_left(pair.now, 3, "died", EpochMachine::Leaving::Lost)));
  EXPECT_FALSE(find<MakePlan>(pair.machine.on_attempt_failed(pair.now)));
  EXPECT_EQ(pair.machine.state(), State::Forming);
}

TEST(EpochMachine, survivors_whose_epoch_gets_a_higher_number_than_they_were_told_hear_of_it) {
  PairOfFour pair;
  pair.commit();
  (void)pair.machine.on_ended(pair.now, make_error(ErrorCode::NodeLost, "node 'b' is gone"));
  (void)pair.machine.on_attempt_failed(pair.now);
  const EpochActions prepared = pair.machine.on_prepare(11);
  ASSERT_TRUE(find<FailStepCalls>(prepared));
  EXPECT_EQ(find<FailStepCalls>(prepared)->error.code, ErrorCode::StaleEpoch);
  EXPECT_TRUE(find<FormEpoch>(prepared)) << "steps are of the new number";
  EXPECT_EQ(pair.machine.epoch(), 11u);
}

TEST(EpochMachine, a_rank_that_declares_anew_while_others_load_takes_back_what_was_told) {
  PairOfFour pair;
  (void)pair.declare(1);
  (void)pair.declare(3);
  (void)pair.machine.on_prepare(7);
  (void)pair.plan();
  (void)pair.machine.on_lane_loaded();
  const EpochActions anew = pair.machine.on_declared(pair.now, 3, {Milliseconds(60'000), false});
  EXPECT_TRUE(find<UnloadPlan>(anew));
  ASSERT_TRUE(find<TellLocals>(anew));
  EXPECT_FALSE(find<TellLocals>(anew)->declared);
  EXPECT_THAT(pair.machine.on_begin(), IsEmpty()) << "the plan is not on the lane any more";
}

TEST(EpochMachine, weights_that_were_compared_before_steps_were_taken_are_declared_anew_after_an_end_by_others) {
  PairOfFour pair;
  (void)pair.machine.on_joined(1, {101, false});
  (void)pair.machine.on_declared(pair.now, 1, {Milliseconds(60'000), true});
  (void)pair.machine.on_checked(pair.now, 1, std::nullopt);
  (void)pair.declare(3);
  (void)pair.machine.on_prepare(7);
  (void)pair.plan();
  (void)pair.machine.on_lane_loaded();
  (void)pair.machine.on_begin();
  pair.machine.on_step_done();
  (void)pair.machine.on_ended(pair.now, make_error(ErrorCode::NodeLost, "node 'b' is gone"));
  const EpochActions quiet = pair.machine.on_attempt_failed(pair.now);
  ASSERT_TRUE(find<TellLocals>(quiet));
  EXPECT_FALSE(find<TellLocals>(quiet)->declared);
}

TEST(EpochMachine, survivors_of_an_epoch_that_others_refuse_declare_again) {
  PairOfFour pair;
  pair.commit();
  (void)pair.machine.on_ended(pair.now, make_error(ErrorCode::NodeLost, "node 'b' is gone"));
  (void)pair.machine.on_attempt_failed(pair.now);
  const EpochActions refused =
      pair.machine.on_refused(pair.now, make_error(ErrorCode::PlanMismatch, "the plans of two nodes differ"));
  ASSERT_TRUE(find<FailStepCalls>(refused));
  EXPECT_EQ(find<FailStepCalls>(refused)->error.code, ErrorCode::PlanMismatch);
  const auto refusal = pair.machine.refuse_step(1, {8, 0}, 0);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->hint, "every rank has to call gradients.declare again");
  EXPECT_THAT(pair.machine.on_prepare(8), IsEmpty());
}

TEST(EpochMachine, of_some_ranks_names_those_that_it_knows_where_time_is_over) {
  PairOfFour pair;
  (void)pair.declare(3);
  const EpochActions none_came = pair.machine.on_time(pair.now + Milliseconds(60'000));
  const auto* alone = find<AnswerDeclare>(none_came);
  ASSERT_TRUE(alone && alone->error);
  EXPECT_THAT(alone->error->message, HasSubstr("1 of 2 ranks of this node not attached"));
  EXPECT_THAT(alone->error->ranks, IsEmpty()) << "which rank has not come is known elsewhere";
  (void)pair.declare(3);
  pair.machine.on_joined(1, {101, false});
  const EpochActions one_came = pair.machine.on_time(pair.now + Milliseconds(60'000));
  const auto* other = find<AnswerDeclare>(one_came);
  ASSERT_TRUE(other && other->error);
  EXPECT_THAT(other->error->message, HasSubstr("rank 1 not declared"));
  EXPECT_THAT(other->error->ranks, ElementsAre(1));
}

TEST(EpochMachine, of_some_ranks_forms_with_those_that_took_the_seat_of_one_that_was_lost) {
  PairOfFour pair;
  pair.machine.on_joined(2, {102, false});
  const EpochActions left = pair.machine.on_left(pair.now, 2, "died", EpochMachine::Leaving::Lost);
  ASSERT_TRUE(find<TellLocals>(left)) << "the rank may come on another node, which claims it then";
  EXPECT_FALSE(find<TellLocals>(left)->declared);
  (void)pair.declare(3);
  const EpochActions declared = pair.declare(1);
  ASSERT_TRUE(find<TellLocals>(declared)) << pair.machine.lacks();
  EXPECT_TRUE(find<TellLocals>(declared)->declared);
  EXPECT_FALSE(find<AnswerDeclare>(pair.machine.on_time(pair.now + Milliseconds(30'000)))) << "nobody is waited for";
}

TEST(EpochMachine, of_some_ranks_has_as_many_seats_after_a_restart_took_over) {
  PairOfFour pair;
  (void)pair.declare(3);
  (void)pair.machine.on_superseded(make_error(ErrorCode::Superseded, "a restart took over"));
  EXPECT_EQ(pair.machine.roster().size(), 2);
  EXPECT_EQ(pair.machine.roster().world_size(), 4);
}

}  // namespace
}  // namespace gradsync::engine
