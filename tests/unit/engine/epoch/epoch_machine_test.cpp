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

/// A machine of two ranks that are attached.
struct Pair {
  Pair() {
    machine.on_joined(0, {100, false});
    machine.on_joined(1, {101, false});
  }

  EpochActions declare(std::int64_t rank) { return machine.on_declared(now, rank, {Milliseconds(60'000), false}); }

  EpochActions check(std::int64_t rank) { return machine.on_checked(now, rank, std::nullopt); }

  EpochActions pass(Milliseconds time) { return machine.on_time(now += time); }

  /// Both declared, and their plan is on the lane.
  void commit() {
    for (const std::int64_t rank : {0, 1}) {
      (void)declare(rank);
      (void)check(rank);
    }
    (void)machine.on_planned(now, {"digest", std::nullopt, std::nullopt});
    (void)machine.on_lane_loaded();
  }

  std::uint64_t tickets = 1;
  TimePoint now{std::chrono::seconds(1000)};
  EpochMachine machine{"job", Roster(2, 2), 1, EngineDeadlines{}, tickets};
};

template <typename Action>
const Action* find(const EpochActions& actions) {
  for (const EpochAction& action : actions) {
    if (const auto* found = std::get_if<Action>(&action)) {
      return found;
    }
  }
  return nullptr;
}

TEST(EpochMachine, plans_when_the_last_declaration_is_checked_and_commits_when_the_lane_has_the_plan) {
  Pair pair;
  (void)pair.declare(0);
  EXPECT_FALSE(find<MakePlan>(pair.check(0)));
  (void)pair.declare(1);
  const EpochActions planning = pair.check(1);
  ASSERT_TRUE(find<MakePlan>(planning));
  EXPECT_TRUE(pair.machine.plans(find<MakePlan>(planning)->ticket));
  EXPECT_TRUE(find<LoadPlan>(pair.machine.on_planned(pair.now, {"digest", std::nullopt, std::nullopt})));
  EXPECT_EQ(pair.machine.state(), State::Loading);
  const EpochActions committed = pair.machine.on_lane_loaded();
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

TEST(EpochMachine, keeps_the_steps_of_survivors_where_the_newcomer_makes_the_same_plan) {
  Pair pair;
  pair.commit();
  (void)pair.machine.on_left(pair.now, 1, "died", EpochMachine::Leaving::Lost);
  (void)pair.machine.on_attempt_failed(pair.now);
  pair.machine.on_joined(1, {201, false});
  (void)pair.declare(1);
  (void)pair.check(1);
  (void)pair.machine.on_planned(pair.now, {"digest", std::nullopt, std::nullopt});
  const EpochActions committed = pair.machine.on_lane_loaded();
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
    EpochActions actions = machine.on_declared(now, rank, {Milliseconds(60'000), false});
    const EpochActions checked = machine.on_checked(now, rank, std::nullopt);
    actions.insert(actions.end(), checked.begin(), checked.end());
    return actions;
  }

  std::uint64_t tickets = 1;
  TimePoint now{std::chrono::seconds(1000)};
  EpochMachine machine{"job", Roster(4, 2), 1, EngineDeadlines{}, tickets};
};

TEST(EpochMachine, of_some_ranks_plans_when_these_have_declared) {
  PairOfFour pair;
  EXPECT_EQ(pair.machine.lacks(), "2 of 2 ranks of this node not attached");
  EXPECT_FALSE(find<MakePlan>(pair.declare(3)));
  EXPECT_EQ(pair.machine.lacks(), "1 of 2 ranks of this node not attached");
  EXPECT_TRUE(find<MakePlan>(pair.declare(1)));
  (void)pair.machine.on_planned(pair.now, {"digest", std::nullopt, std::nullopt});
  EXPECT_TRUE(find<CommitPlan>(pair.machine.on_lane_loaded()));
  EXPECT_TRUE(pair.machine.roster().all_committed());
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

TEST(EpochMachine, of_some_ranks_has_as_many_seats_after_a_restart_took_over) {
  PairOfFour pair;
  (void)pair.declare(3);
  (void)pair.machine.on_superseded(make_error(ErrorCode::Superseded, "a restart took over"));
  EXPECT_EQ(pair.machine.roster().size(), 2);
  EXPECT_EQ(pair.machine.roster().world_size(), 4);
}

}  // namespace
}  // namespace gradsync::engine
