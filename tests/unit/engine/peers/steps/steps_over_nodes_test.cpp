// Steps of one job over several engines: the numbers are those of one, and what happens on one node is an error with a
// name on all.

#include "unit/engine/peers/steps/steps_over_nodes.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace gradsync::engine {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(StepsOverNodes, have_the_number_that_the_nodes_agree_on_whatever_the_first_of_a_daemon_is) {
  EngineOptions options;
  options.first_epoch = 1'000'000;  // at random in a daemon, and other than that of the coordinator
  LinkedEngines all(2, 1, options);
  start(all);
  EXPECT_EQ(all.key(0).epoch, all.key(1).epoch);
  EXPECT_LT(all.key(0).epoch, 1'000'000u);
  write(all);
  expect_done(finish(all, 1), norm_of(2));
}

TEST_F(StepsOverNodes, have_the_norm_of_all_ranks_on_all_ranks) {
  for (const auto& [nodes, per_node] : {std::pair<std::size_t, std::int64_t>{2, 2}, {3, 1}, {4, 2}}) {
    LinkedEngines all(nodes, per_node);
    start(all);
    for (std::int64_t step = 0; step < 5; ++step) {
      write(all);
      const Calls calls = finish(all, step);
      expect_done(calls, norm_of(all.world()));
      EXPECT_TRUE(calls.front()->report->clipped);
      EXPECT_EQ(calls.back()->report->counted_elements, static_cast<std::uint64_t>(2 * all.world() + 2));
      EXPECT_THAT(calls.back()->report->divergence, IsEmpty());
    }
  }
}

TEST_F(StepsOverNodes, may_be_made_in_halves) {
  LinkedEngines all(2, 2);
  start(all);
  write(all);
  FinishRequest norm;
  norm.kind = FinishKind::NormOnly;
  expect_done(finish(all, 0, norm), norm_of(4));
  Calls clips;
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    clips.push_back(all.clip(rank, 0));
  }
  all.pump();
  expect_done(clips, norm_of(4));
  EXPECT_TRUE(clips.front()->report->clipped);
  write(all);
  expect_done(finish(all, 1), norm_of(4));
}

TEST_F(StepsOverNodes, policies_remember_alike_and_take_a_state_alike) {
  plan::RankDeclaration declared = declaration(4);
  declared.options.clip[0].clip.max_norm.reset();
  declared.options.clip[0].clip.policy = plan::PercentilePolicy{50, 4, 2};
  LinkedEngines all(2, 2);
  start(all, declared);
  for (std::int64_t step = 0; step < 3; ++step) {
    write(all);
    expect_done(finish(all, step), norm_of(4));
  }
  const Result<PolicyExport> state = all.engine_of(3).export_policies(all.session(3));
  ASSERT_TRUE(state);
  Calls imports;
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    imports.push_back(all.import(rank, state->state));
  }
  all.pump();
  for (const auto& import : imports) {
    ASSERT_TRUE(import->report) << (import->error ? import->error->message : "still waits");
  }
  write(all);
  const Calls calls = finish(all, 3);
  expect_done(calls, norm_of(4));
  EXPECT_EQ(calls.back()->report->threshold, static_cast<float>(norm_of(4)));
}

TEST_F(StepsOverNodes, auto_clipping_remembers_a_nan_alike_on_all_nodes_and_so_does_a_node_that_is_new) {
  plan::RankDeclaration declared = declaration(4);
  declared.options.clip[0].clip.max_norm.reset();
  declared.options.clip[0].clip.policy = plan::AutoPolicy{{50, 3, 1}};
  LinkedEngines all(2, 2);
  start(all, declared);
  const auto broken_step = [&all](std::int64_t step) {
    write(all);
    device::StatsRow broken;
    broken.power_sum = broken.maximum = 1;
    broken.nan = broken.nonfinite = 1;
    all.write(3, 0, broken);
    return finish(all, step);
  };
  write(all);
  expect_done(finish(all, 0), norm_of(4));
  for (const auto& call : broken_step(1)) {
    ASSERT_TRUE(call->report) << (call->error ? call->error->message : "still waits");
    EXPECT_TRUE(std::isnan(call->report->norm));
    EXPECT_EQ(call->report->threshold, static_cast<float>(norm_of(4)));
  }
  all.lose(2);
  all.lose(3);
  all.pump();
  for (const std::int64_t rank : {0, 1}) {
    expect_failed({all.finish(rank, 2)}, ErrorCode::NodeLost, "node 'node1' with ranks 2, 3 is lost");
  }
  for (const std::int64_t rank : {2, 3}) {
    all.attach(rank);
    all.declare(rank, declared);
  }
  all.pass(Milliseconds(2'000));
  ASSERT_TRUE(all.declared(2) && all.declared(3)) << (all.refusal(3) ? all.refusal(3)->message : "still waits");
  for (std::int64_t step = 2; step < 6; ++step) {
    write(all);
    const Calls calls = finish(all, step);
    expect_done(calls, norm_of(4));
    for (const auto& call : calls) {
      EXPECT_EQ(std::isinf(call->report->threshold), step < 5) << "the NaN leaves the window after three steps";
    }
  }
}

TEST_F(StepsOverNodes, a_row_that_cannot_be_right_fails_them_on_all_nodes_and_the_next_attempt_is_one_for_all) {
  LinkedEngines all(2, 2);
  start(all);
  write(all);
  device::StatsRow wrong = row_of(3);
  wrong.maximum = -2;
  all.write(3, 0, wrong);
  expect_failed(finish(all, 0), ErrorCode::StepFailed, "the row that rank 3 wrote for 'w' cannot be right");
  for (std::int64_t rank = 1; rank < 4; ++rank) {
    EXPECT_EQ(attempt_word(all.key(rank)), attempt_word(all.key(0)));
  }
  write(all);
  expect_done(finish(all, 0), norm_of(4));
}

TEST_F(StepsOverNodes, a_failure_reaches_ranks_that_call_later_for_the_same_attempt) {
  LinkedEngines all(2, 2);
  start(all);
  write(all);
  Calls first{all.finish(2, 0), all.finish(3, 1)};
  all.pump();
  expect_failed(first, ErrorCode::StepMismatch, "rank 3");
  Calls later{all.finish(0, 0), all.finish(1, 0)};
  all.pump();
  expect_failed(later, ErrorCode::StepMismatch, "rank 3");
  write(all);
  expect_done(finish(all, 0), norm_of(4));
}

TEST_F(StepsOverNodes, nodes_that_ask_for_different_steps_are_named) {
  LinkedEngines all(2, 2);
  start(all);
  write(all);
  Calls calls{all.finish(0, 7), all.finish(1, 7), all.finish(2, 8), all.finish(3, 8)};
  all.pump();
  expect_failed(calls, ErrorCode::StepMismatch, "node1");
  write(all);
  expect_done(finish(all, 7), norm_of(4));
}

TEST_F(StepsOverNodes, a_copy_that_differs_on_another_node_is_named) {
  LinkedEngines all(2, 2);
  start(all);
  write(all);
  all.write(3, 1, row_of(0.75));
  const Calls calls = finish(all, 0);
  expect_done(calls, norm_of(4));
  for (const auto& call : calls) {
    ASSERT_EQ(call->report->divergence.size(), 1u);
    EXPECT_EQ(call->report->divergence[0].tensor, "b");
    EXPECT_THAT(call->report->divergence[0].suspects, ElementsAre(3));
  }
  write(all);
  EXPECT_THAT(finish(all, 1).front()->report->divergence, IsEmpty());
}

TEST_F(StepsOverNodes, a_value_that_is_not_finite_is_found_and_named_on_all_nodes) {
  LinkedEngines all(2, 2);
  start(all);
  write(all);
  device::StatsRow bad = row_of(1);
  bad.nonfinite = bad.nan = 1;
  all.write(2, 0, bad);
  for (const auto& call : finish(all, 0)) {
    ASSERT_TRUE(call->report);
    EXPECT_TRUE(std::isnan(call->report->norm));
    EXPECT_TRUE(call->report->found_inf);
    ASSERT_EQ(call->report->nonfinite.size(), 1u);
    EXPECT_EQ(call->report->nonfinite[0].tensor, "w");
  }
}

TEST_F(StepsOverNodes, a_rank_that_is_late_on_another_node_is_named_when_the_time_is_over) {
  LinkedEngines all(2, 2);
  start(all);
  write(all);
  FinishRequest quick;
  quick.timeout = Milliseconds(4'000);
  Calls calls{all.finish(0, 0, quick), all.finish(1, 0, quick), all.finish(2, 0, quick)};
  all.pump();
  all.pass(Milliseconds(8'000));
  calls.push_back(all.finish(3, 0));
  expect_failed(calls, ErrorCode::StepTimeout, "rank 3");
  write(all);
  expect_done(finish(all, 0), norm_of(4));
}

TEST_F(StepsOverNodes, a_pause_on_another_node_stops_the_clock) {
  LinkedEngines all(2, 2);
  start(all);
  write(all);
  FinishRequest quick;
  quick.timeout = Milliseconds(4'000);
  all.pause(2, true);
  Calls calls{all.finish(0, 0, quick), all.finish(1, 0, quick)};
  all.pump();
  all.pass(Milliseconds(60'000));
  EXPECT_EQ(calls[0]->calls, 0);
  all.pause(2, false);
  all.pump();
  calls.push_back(all.finish(2, 0, quick));
  calls.push_back(all.finish(3, 0, quick));
  all.pump();
  expect_done(calls, norm_of(4));
}

TEST_F(StepsOverNodes, a_rank_that_is_lost_ends_the_epoch_of_all_and_its_successor_begins_the_next) {
  LinkedEngines all(2, 2);
  start(all);
  write(all);
  expect_done(finish(all, 0), norm_of(4));
  write(all);
  const Calls waiting{all.finish(0, 1), all.finish(1, 1)};
  all.pump();
  all.lose(3);
  all.pump();
  expect_failed(waiting, ErrorCode::RankLost, "rank 3");
  const Calls own{all.finish(2, 1)};
  expect_failed(own, ErrorCode::RankLost, "rank 3");
  EXPECT_EQ(waiting[0]->error->node, "node1");
  EXPECT_EQ(own[0]->error->node, "node1") << "also on the node that lost it";
  all.attach(3);
  all.declare(3, declaration(4));
  all.pump();
  ASSERT_TRUE(all.declared(3)) << (all.refusal(3) ? all.refusal(3)->message : "still waits");
  write(all);
  expect_done(finish(all, 1), norm_of(4));
}

TEST_F(StepsOverNodes, ranks_that_two_nodes_lose_one_after_the_other_end_an_epoch_that_has_not_begun) {
  LinkedEngines all(2, 2);
  start(all);
  all.lose(3);
  all.pump();
  expect_failed({all.finish(0, 0), all.finish(1, 0), all.finish(2, 0)}, ErrorCode::RankLost, "rank 3");
  all.lose(0);
  all.pump();
  for (const std::int64_t rank : {0, 3}) {
    all.attach(rank);
    all.declare(rank, declaration(4));
  }
  all.pump();
  ASSERT_TRUE(all.declared(0) && all.declared(3)) << (all.refusal(3) ? all.refusal(3)->message : "still waits");
  for (const std::int64_t rank : {1, 2}) {
    ASSERT_TRUE(all.finish(rank, 0)->error) << "it has to hear the number of the epoch";
    EXPECT_EQ(all.key(rank).epoch, all.key(0).epoch);
  }
  write(all);
  expect_done(finish(all, 0), norm_of(4));
}

TEST_F(StepsOverNodes, a_call_that_times_out_before_the_epoch_begins_is_of_no_attempt) {
  LinkedEngines all(2, 2);
  start(all);
  all.lose(3);
  all.pump();
  expect_failed({all.finish(0, 0)}, ErrorCode::RankLost, "rank 3");
  FinishRequest quick;
  quick.timeout = Milliseconds(2'000);
  const Calls early{all.finish(0, 0, quick)};
  all.pass(Milliseconds(4'000));
  expect_failed(early, ErrorCode::StepTimeout, "the epoch is not complete");
  all.attach(3);
  all.declare(3, declaration(4));
  all.pump();
  ASSERT_TRUE(all.declared(3));
  for (const std::int64_t rank : {1, 2}) {
    expect_failed({all.finish(rank, 0)}, ErrorCode::RankLost, "rank 3");
  }
  write(all);
  expect_done(finish(all, 0), norm_of(4));
}

TEST_F(StepsOverNodes, attempts_that_fail_while_a_lane_is_slow_are_failed_there_one_after_the_other) {
  LinkedEngines all(2, 2);
  start(all);
  write(all);
  all.hold_lane(0, true);
  Calls slow{all.finish(0, 0), all.finish(1, 0)};
  for (int attempt = 0; attempt < 3; ++attempt) {
    const Calls quarrel{all.finish(2, 0), all.finish(3, 1)};
    all.pump();
    expect_failed(quarrel, ErrorCode::StepMismatch, "rank 3");
  }
  all.hold_lane(0, false);
  all.pump();
  expect_failed(slow, ErrorCode::StepMismatch, "rank 3");
  expect_failed({all.finish(0, 0), all.finish(1, 0)}, ErrorCode::StaleAttempt, "attempt 3");
  write(all);
  expect_done(finish(all, 0), norm_of(4));
}

TEST_F(StepsOverNodes, a_rank_that_dies_behind_the_vote_of_its_node_fails_the_attempt_once) {
  for (const std::int64_t lost : {1, 3}) {
    SCOPED_TRACE(testing::Message() << "rank " << lost);
    LinkedEngines all(2, 2);
    start(all);
    write(all);
    all.hold_lane(lost < 2 ? 1 : 0, true);
    const Calls calls = finish(all, 0);
    all.lose(lost);
    all.pump();
    all.hold_lane(lost < 2 ? 1 : 0, false);
    all.pump();
    for (std::int64_t rank = 0; rank < 4; ++rank) {
      const auto& call = calls[static_cast<std::size_t>(rank)];
      EXPECT_EQ(call->calls, 1) << rank;
      EXPECT_TRUE(call->error) << rank;
    }
    all.attach(lost);
    all.declare(lost, declaration(4));
    all.pump();
    ASSERT_TRUE(all.declared(lost)) << (all.refusal(lost) ? all.refusal(lost)->message : "still waits");
    write(all);
    expect_done(finish(all, 0), norm_of(4));
  }
}

TEST_F(StepsOverNodes, a_vote_that_nobody_answers_ends_in_doubt_at_the_deadline) {
  LinkedEngines all(2, 2);
  start(all);
  write(all);
  FinishRequest quick;
  quick.timeout = Milliseconds(3'000);
  all.on_vote = [&](std::size_t node) { all.hold_messages(0, node == 1); };
  const Calls calls = finish(all, 0, quick);
  EXPECT_EQ(calls[2]->calls, 0) << "it has voted, and hears nothing any more";
  all.cut(1);
  all.keep_apart(1);
  all.pass(Milliseconds(6'000));
  for (const std::int64_t rank : {2, 3}) {
    const auto& call = calls[static_cast<std::size_t>(rank)];
    ASSERT_TRUE(call->error);
    EXPECT_EQ(call->error->code, ErrorCode::StepInDoubt) << call->error->message;
  }
}

TEST_F(StepsOverNodes, a_vote_that_does_not_come_fails_the_attempt_when_time_is_over) {
  LinkedEngines all(3, 1);
  start(all);
  write(all);
  FinishRequest quick;
  quick.timeout = Milliseconds(2'000);
  all.on_vote = [&](std::size_t node) { all.hold_messages(2, node == 2); };
  const Calls calls = finish(all, 0, quick);
  all.pass(Milliseconds(3'500));
  for (const std::int64_t rank : {0, 1}) {
    const auto& call = calls[static_cast<std::size_t>(rank)];
    ASSERT_TRUE(call->error) << "rank " << rank << " waits";
    EXPECT_EQ(call->error->code, ErrorCode::StepTimeout) << call->error->message;
    EXPECT_EQ(call->error->node, "node2");
  }
  all.hold_messages(2, false);
  all.pass(Milliseconds(1'000));
  ASSERT_TRUE(calls[2]->error);
  EXPECT_EQ(calls[2]->error->code, ErrorCode::StepTimeout) << calls[2]->error->message;
}

TEST_F(StepsOverNodes, a_node_whose_ranks_are_all_new_gets_what_policies_remember) {
  plan::RankDeclaration declared = declaration(4);
  declared.options.clip[0].clip.max_norm.reset();
  declared.options.clip[0].clip.policy = plan::PercentilePolicy{50, 4, 2};
  LinkedEngines all(2, 2);
  start(all, declared);
  for (std::int64_t step = 0; step < 3; ++step) {
    write(all);
    expect_done(finish(all, step), norm_of(4));
  }
  all.lose(2);
  all.lose(3);
  all.pump();
  for (const std::int64_t rank : {0, 1}) {
    expect_failed({all.finish(rank, 3)}, ErrorCode::NodeLost, "node 'node1' with ranks 2, 3 is lost");
  }
  for (const std::int64_t rank : {2, 3}) {
    all.attach(rank);
    all.declare(rank, declared);
  }
  all.pass(Milliseconds(2'000));
  ASSERT_TRUE(all.declared(2) && all.declared(3)) << (all.refusal(3) ? all.refusal(3)->message : "still waits");
  write(all);
  const Calls calls = finish(all, 3);
  expect_done(calls, norm_of(4));
  EXPECT_EQ(calls.back()->report->threshold, static_cast<float>(norm_of(4))) << "of the steps before";
}

TEST_F(StepsOverNodes, declarations_that_do_not_fit_are_refused_on_all_nodes) {
  LinkedEngines all(2, 2);
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    plan::RankDeclaration declared = declaration(4);
    if (rank == 3) {
      declared.tensors.own()[1].shape = declared.tensors.own()[1].local_shape = {3};
    }
    all.declare(rank, declared);
  }
  all.pump();
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    ASSERT_TRUE(all.refusal(rank)) << rank;
    EXPECT_EQ(all.refusal(rank)->code, ErrorCode::PlanMismatch) << all.refusal(rank)->message;
    EXPECT_EQ(all.refusal(rank)->tensor, "b");
  }
  start(all);
  write(all);
  expect_done(finish(all, 0), norm_of(4));
}

}  // namespace
}  // namespace gradsync::engine
