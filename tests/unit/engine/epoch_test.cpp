#include "harness.hpp"

#include <gmock/gmock.h>

namespace gradsync::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Epoch, a_declaration_that_differs_is_refused_to_all_by_name_and_may_come_again) {
  Harness h;
  h.attach(0, 2);
  h.attach(1, 2);
  const auto a = h.declare(0, Harness::declaration({Harness::tensor("a", 8)}));
  const auto b = h.declare(1, Harness::declaration({Harness::tensor("a", 9)}));
  h.pump();
  ASSERT_TRUE(a->error && b->error);
  EXPECT_EQ(a->error->code, ErrorCode::PlanMismatch);
  EXPECT_EQ(a->error->tensor, "a");
  const auto c = h.declare(0, Harness::declaration({Harness::tensor("a", 8)}));
  const auto d = h.declare(1, Harness::declaration({Harness::tensor("a", 8)}));
  h.pump();
  EXPECT_TRUE(c->result && d->result);
}

TEST(Epoch, an_invalid_declaration_is_answered_at_once_to_its_rank_alone) {
  Harness h;
  h.attach(0, 2);
  h.attach(1, 2);
  plan::TensorDeclaration bad = Harness::tensor("a");
  bad.placements[0].axes = {"tpp"};
  const auto a = h.declare(0, Harness::declaration({bad}));
  h.pump();
  ASSERT_TRUE(a->error);
  EXPECT_EQ(a->error->code, ErrorCode::InvalidDeclaration);
  const auto b = h.declare(1, Harness::declaration({Harness::tensor("a")}));
  h.pump();
  EXPECT_EQ(b->calls, 0);
}

TEST(Epoch, an_arena_too_small_is_refused_with_both_sizes) {
  Harness h;
  h.attach(0, 1);
  const auto declared = h.declare(0, Harness::declaration({Harness::tensor("a", 100)}), h.allocate(0, 64));
  h.pump();
  ASSERT_TRUE(declared->error);
  EXPECT_EQ(declared->error->path, "buffer");
  EXPECT_THAT(declared->error->message, HasSubstr("448"));
}

TEST(Epoch, the_declare_deadline_names_who_is_missing) {
  EngineOptions options;
  options.deadlines.declare = Milliseconds(1000);
  Harness h(options);
  h.attach(0, 3);
  h.attach(2, 3);
  const auto a = h.declare(0, Harness::declaration({Harness::tensor("a")}));
  h.pump();
  h.pass(Milliseconds(1000));
  ASSERT_TRUE(a->error);
  EXPECT_EQ(a->error->code, ErrorCode::DeclareTimeout);
  EXPECT_THAT(a->error->ranks, ElementsAre(1, 2));
  EXPECT_THAT(a->error->message, HasSubstr("rank 1 not attached"));
  EXPECT_THAT(a->error->message, HasSubstr("rank 2 not declared"));
}

TEST(Epoch, a_rank_that_dies_in_a_step_fails_it_for_the_others_by_name) {
  Harness h;
  h.start(3);
  const auto a = h.finish(0, 0);
  h.engine.process_exited(h.sessions.at(2));
  ASSERT_TRUE(a->error);
  EXPECT_EQ(a->error->code, ErrorCode::RankLost);
  EXPECT_EQ(a->error->rank, 2);
  EXPECT_EQ(a->error->epoch, 2u);
  EXPECT_EQ(a->error->attempt, 0u);
  // The rank that was still in its backward learns it with its own finish.
  const auto b = h.finish(1, 0);
  ASSERT_TRUE(b->error);
  EXPECT_EQ(b->error->code, ErrorCode::RankLost);
  EXPECT_EQ(b->error->rank, 2);
}

TEST(Epoch, no_answer_leaves_while_the_lane_still_works_on_the_failed_step) {
  Harness h;
  h.start(2);
  const auto a = h.finish(0, 0);
  const auto b = h.finish(1, 0);
  h.engine.process_exited(h.sessions.at(1));
  EXPECT_EQ(a->calls, 0);
  h.pump();
  ASSERT_TRUE(a->error);
  EXPECT_EQ(a->error->code, ErrorCode::RankLost);
  ASSERT_EQ(b->calls, 1) << "a call of a dead rank ends too";
  EXPECT_EQ(b->error->code, ErrorCode::RankLost);
  EXPECT_TRUE(h.lane.finished.empty());
}

TEST(Epoch, the_memory_of_a_dead_rank_is_unmapped) {
  Harness h;
  h.start(2);
  h.engine.process_exited(h.sessions.at(1));
  h.pump();
  EXPECT_THAT(h.lane.unmapped, ElementsAre(2));
}

TEST(Epoch, a_new_process_joins_and_only_it_declares) {
  Harness h;
  h.start(2);
  const auto a = h.finish(0, 0);
  h.engine.process_exited(h.sessions.at(1));
  ASSERT_TRUE(a->error);
  // The survivor already works for the new epoch.
  const auto again = h.finish(0, 0);
  EXPECT_EQ(again->calls, 0);
  h.generation = 1;
  EXPECT_EQ(h.attach(1, 2).epoch, 2u);
  const auto declared = h.declare(1, Harness::declaration({Harness::tensor("a"), Harness::tensor("b")}));
  h.pump();
  ASSERT_TRUE(declared->result);
  EXPECT_EQ(declared->result->epoch, 2u);
  const auto b = h.finish(1, 0);
  h.pump();
  ASSERT_TRUE(again->report && b->report);
  EXPECT_EQ(again->report->epoch, 2u);
}

TEST(Epoch, a_live_rank_may_not_be_taken_but_a_dead_one_may) {
  Harness h;
  h.attach(0, 2);
  AttachRequest thief = h.request(0, 2);
  thief.client_id = "other";
  thief.pid = 999;
  const Result<AttachResult> refused = h.engine.attach(thief);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::RankInUse);
  EXPECT_THAT(refused.error().message, HasSubstr("100"));
  h.attach(1, 2);
  h.engine.process_exited(h.sessions.at(0));
  EXPECT_TRUE(h.engine.attach(thief));
}

TEST(Epoch, world_size_and_meshes_must_match_the_ranks_already_there) {
  Harness h;
  h.attach(0, 2);
  AttachRequest request = h.request(1, 2);
  request.world_size = 4;
  request.meshes = {{"default", {{"dp", 4}}, {}}};
  EXPECT_EQ(h.engine.attach(request).error().path, "world_size");
  request = h.request(1, 2);
  request.meshes[0].axes[0].name = "tp";
  EXPECT_EQ(h.engine.attach(request).error().path, "meshes");
}

TEST(Epoch, a_connection_that_comes_back_in_time_resumes_and_keeps_its_step) {
  Harness h;
  h.start(2);
  const auto lost = h.finish(0, 0);
  h.engine.connection_lost(h.sessions.at(0));
  h.pass(Milliseconds(1999));
  const AttachResult resumed = h.attach(0, 2);
  EXPECT_TRUE(resumed.resumed);
  EXPECT_EQ(resumed.epoch, 1u);
  EXPECT_EQ(resumed.attempt, 0u);
  const auto again = h.finish(0, 0);
  const auto b = h.finish(1, 0);
  h.pump();
  EXPECT_TRUE(again->report && b->report);
  EXPECT_EQ(lost->calls, 1) << "told once that another call took its place";
}

TEST(Epoch, a_late_close_of_the_old_connection_does_not_hurt_the_resumed_one) {
  Harness h;
  h.start(1);
  const SessionId old = h.sessions.at(0);
  h.attach(0, 1);
  h.engine.connection_lost(old);
  h.pass(Milliseconds(10'000));
  const auto outcome = h.finish(0, 0);
  h.pump();
  EXPECT_TRUE(outcome->report);
}

TEST(Epoch, a_connection_that_stays_away_is_a_lost_rank) {
  Harness h;
  h.start(2);
  const auto a = h.finish(0, 0);
  h.engine.connection_lost(h.sessions.at(1));
  h.pass(Milliseconds(2000));
  ASSERT_TRUE(a->error);
  EXPECT_EQ(a->error->code, ErrorCode::RankLost);
  EXPECT_THAT(a->error->message, HasSubstr("did not come back"));
  EXPECT_EQ(h.engine.status(1000)[0].ranks[1].state, "absent");
}

TEST(Epoch, declaring_anew_needs_every_rank) {
  Harness h;
  h.start(2);
  const auto a = h.declare(0, Harness::declaration({Harness::tensor("c")}));
  h.pump();
  EXPECT_EQ(a->calls, 0);
  const auto stale = h.finish(1, 0);
  ASSERT_TRUE(stale->error);
  EXPECT_EQ(stale->error->code, ErrorCode::StaleEpoch);
  const auto still = h.finish(1, 0);
  ASSERT_TRUE(still->error) << "the new epoch needs a declaration of this rank first";
  const auto b = h.declare(1, Harness::declaration({Harness::tensor("c")}));
  h.pump();
  ASSERT_TRUE(a->result && b->result);
  EXPECT_EQ(a->result->epoch, 2u);
  const auto x = h.finish(0, 0);
  const auto y = h.finish(1, 0);
  h.pump();
  EXPECT_TRUE(x->report && y->report);
}

TEST(Epoch, the_same_declaration_again_also_needs_every_rank) {
  Harness h;
  h.start(2, {Harness::tensor("a")});
  const auto a = h.declare(0, Harness::declaration({Harness::tensor("a")}));
  h.pump();
  EXPECT_EQ(a->calls, 0);
  h.declare(1, Harness::declaration({Harness::tensor("a")}));
  h.pump();
  EXPECT_TRUE(a->result);
}

TEST(Epoch, a_restart_with_a_higher_count_supersedes_and_may_change_the_world) {
  Harness h;
  h.start(2);
  const auto waiting = h.finish(0, 0);
  AttachRequest restart = h.request(0, 1);
  restart.restart_count = 1;
  restart.pid = 500;
  restart.client_id = "new";
  const Result<AttachResult> attached = h.engine.attach(restart);
  ASSERT_TRUE(attached) << attached.error().message;
  ASSERT_TRUE(waiting->error);
  EXPECT_EQ(waiting->error->code, ErrorCode::Superseded);
  const auto late = h.finish(1, 0);
  EXPECT_EQ(late->error->code, ErrorCode::Superseded);
  AttachRequest old = h.request(0, 1);
  EXPECT_EQ(h.engine.attach(old).error().code, ErrorCode::Superseded);
  EXPECT_EQ(h.engine.status(1000)[0].world_size, 1);
  h.pump();
  EXPECT_EQ(h.lane.unmapped.size(), 2u);
}

TEST(Epoch, the_same_process_may_attach_again) {
  Harness h;
  h.start(1);
  h.generation = 1;  // another client of the same pid, as in a notebook
  h.start(1);
  const auto outcome = h.finish(0, 0);
  h.pump();
  EXPECT_TRUE(outcome->report);
}

TEST(Epoch, two_ranks_lost_at_once_leave_one_consistent_epoch) {
  Harness h;
  h.start(3);
  const auto a = h.finish(0, 0);
  h.finish(1, 0);
  h.finish(2, 0);
  h.engine.process_exited(h.sessions.at(1));
  h.engine.process_exited(h.sessions.at(2));
  h.pump();
  ASSERT_TRUE(a->error);
  EXPECT_EQ(a->error->epoch, 2u);
  h.generation = 1;
  for (const std::int64_t rank : {1, 2}) {
    h.attach(rank, 3);
    h.declare(rank, Harness::declaration({Harness::tensor("a"), Harness::tensor("b")}));
  }
  h.pump();
  std::vector<std::shared_ptr<Outcome>> outcomes;
  for (const std::int64_t rank : {0, 1, 2}) {
    outcomes.push_back(h.finish(rank, 0));
  }
  h.pump();
  for (const auto& outcome : outcomes) {
    EXPECT_TRUE(outcome->report);
  }
}

TEST(Epoch, a_rank_lost_while_the_plan_loads_leaves_the_others_waiting) {
  Harness h;
  h.attach(0, 2);
  h.attach(1, 2);
  const auto a = h.declare(0, Harness::declaration({Harness::tensor("a")}));
  h.declare(1, Harness::declaration({Harness::tensor("a")}));
  while (!h.planner.requests.empty()) {
    h.engine.on_plan(h.planner.plan_next());
  }
  h.engine.process_exited(h.sessions.at(1));  // LoadPlan is queued on the lane
  h.pump();
  EXPECT_EQ(a->calls, 0);
  h.generation = 1;
  h.attach(1, 2);
  const auto b = h.declare(1, Harness::declaration({Harness::tensor("a")}));
  h.pump();
  EXPECT_TRUE(a->result && b->result);
}

TEST(Epoch, the_last_rank_to_leave_takes_the_job_with_it) {
  Harness h;
  h.start(2);
  EXPECT_TRUE(h.engine.detach(h.sessions.at(0)));
  EXPECT_TRUE(h.engine.detach(h.sessions.at(1)));
  h.pump();
  EXPECT_TRUE(h.engine.status(1000).empty());
  EXPECT_EQ(h.lane.unmapped.size(), 2u);
  EXPECT_EQ(h.metrics.ranks_lost.Value(), 0.0);
  EXPECT_EQ(h.metrics.arena_bytes.Value(), 0.0);
}

}  // namespace
}  // namespace gradsync::engine
