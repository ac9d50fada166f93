#include "unit/engine/harness.hpp"

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

/// A declaration with an axis that no mesh has.
plan::RankDeclaration refused_by_itself() {
  plan::TensorDeclaration bad = Harness::tensor("a");
  bad.placements[0].axes = {"tpp"};
  return Harness::declaration({bad});
}

TEST(Epoch, an_invalid_declaration_is_told_at_once_to_every_rank_that_waits) {
  Harness h;
  h.attach(0, 2);
  h.attach(1, 2);
  const auto b = h.declare(1, Harness::declaration({Harness::tensor("a")}));
  h.pump();
  const auto a = h.declare(0, refused_by_itself());
  h.pump();
  ASSERT_TRUE(a->error && b->error);
  EXPECT_EQ(a->error->code, ErrorCode::InvalidDeclaration);
  EXPECT_EQ(b->error->code, ErrorCode::InvalidDeclaration);
  EXPECT_EQ(b->error->rank, 0);
  EXPECT_THAT(b->error->message, HasSubstr("the declaration of rank 0 is refused: " + a->error->message));
  EXPECT_EQ(b->error->path, "") << "the request of rank 1 has nothing wrong";
}

TEST(Epoch, a_rank_that_declares_after_the_refusal_of_another_hears_of_it_until_that_declares_again) {
  Harness h;
  h.attach(0, 2);
  h.attach(1, 2);
  h.declare(0, refused_by_itself());
  h.pump();
  const auto late = h.declare(1, Harness::declaration({Harness::tensor("a")}));
  h.pump();
  ASSERT_TRUE(late->error);
  EXPECT_EQ(late->error->rank, 0);
  const auto a = h.declare(0, Harness::declaration({Harness::tensor("a")}));
  const auto b = h.declare(1, Harness::declaration({Harness::tensor("a")}));
  h.pump();
  EXPECT_TRUE(a->result && b->result);
}

TEST(Epoch, a_declaration_refused_before_it_is_checked_is_told_at_once_too) {
  EngineOptions options;
  options.limits.tensors = 1;
  Harness h(options);
  h.attach(0, 3);
  h.attach(1, 3);
  h.attach(2, 3);
  const auto good = [&](std::int64_t rank) { return h.declare(rank, Harness::declaration({Harness::tensor("a")})); };

  auto waiting = good(1);
  h.pump();
  const auto stranger = h.declare(0, Harness::declaration({Harness::tensor("a")}), 999);
  ASSERT_TRUE(stranger->error && waiting->error);
  EXPECT_EQ(stranger->error->code, ErrorCode::UnknownBuffer);
  EXPECT_EQ(stranger->error->path, "buffer");
  EXPECT_EQ(waiting->error->code, ErrorCode::UnknownBuffer);
  EXPECT_EQ(waiting->error->rank, 0);
  EXPECT_EQ(waiting->error->path, "") << "the request of rank 1 has nothing wrong";
  EXPECT_THAT(waiting->error->message, HasSubstr("the declaration of rank 0 is refused: buffer 999"));

  waiting = good(1);
  h.pump();
  ASSERT_TRUE(waiting->error) << "rank 0 has not declared anything better since";
  h.declare(0, Harness::declaration({Harness::tensor("a"), Harness::tensor("b")}));
  waiting = good(2);
  h.pump();
  ASSERT_TRUE(waiting->error);
  EXPECT_EQ(waiting->error->code, ErrorCode::LimitExceeded);

  Error unread = make_error(ErrorCode::InvalidParams, "tensors[0].name: missing");
  unread.path = "tensors[0].name";
  const auto earlier = good(0);
  h.engine.declaration_refused(h.sessions.at(0), unread);
  const auto b = good(1);
  const auto c = good(2);
  h.pump();
  EXPECT_TRUE(earlier->result && b->result && c->result) << "what rank 0 declared before waits, and stands";
}

TEST(Epoch, a_refusal_of_a_rank_that_nobody_waits_for_is_told_to_none) {
  Harness h;
  h.start(2);
  const Error unread = make_error(ErrorCode::InvalidParams, "buffer: missing");
  h.engine.declaration_refused(h.sessions.at(0), unread);
  const auto a = h.finish(0, 0);
  const auto b = h.finish(1, 0);
  h.pump();
  ASSERT_TRUE(a->report && b->report) << "the epoch goes on";
  const auto anew = h.declare(1, Harness::declaration({Harness::tensor("c")}));
  h.pump();
  EXPECT_EQ(anew->calls, 0) << "rank 0 has taken a step since";
  h.engine.declaration_refused(h.sessions.at(0), unread);
  ASSERT_TRUE(anew->error) << "now every rank has to declare";
  EXPECT_EQ(anew->error->rank, 0);
}

TEST(Epoch, survivors_in_a_step_call_hear_of_a_newcomer_whose_declaration_is_refused) {
  Harness h;
  h.start(2);
  h.finish(0, 0);  // its error says where to go on
  h.engine.process_exited(h.sessions.at(1));
  const auto survivor = h.finish(0, 0);
  h.generation = 1;
  h.attach(1, 2);
  EXPECT_EQ(survivor->calls, 0);
  h.declare(1, refused_by_itself());
  h.pump();
  ASSERT_TRUE(survivor->error);
  EXPECT_EQ(survivor->error->code, ErrorCode::InvalidDeclaration);
  EXPECT_EQ(survivor->error->rank, 1);
  const auto again = h.finish(0, 0);
  h.declare(1, Harness::declaration({Harness::tensor("a"), Harness::tensor("b")}));
  h.pump();
  const auto newcomer = h.finish(1, 0);
  h.pump();
  EXPECT_TRUE(again->report && newcomer->report) << "it may declare again";
}

TEST(Epoch, a_survivor_hears_of_a_refusal_that_came_before_its_step_call) {
  Harness h;
  h.start(3);
  h.finish(0, 0);
  h.engine.process_exited(h.sessions.at(2));
  h.finish(1, 0);  // both know where to go on
  h.generation = 1;
  h.attach(2, 3);
  h.declare(2, refused_by_itself());
  h.pump();
  h.ready(0, 0);
  const auto first = h.finish(0, 0);
  ASSERT_TRUE(first->error) << "it would wait for its deadline";
  EXPECT_EQ(first->error->code, ErrorCode::InvalidDeclaration);
  EXPECT_EQ(first->error->rank, 2);
  EXPECT_EQ(first->error->attempt, 1u) << "what it had said of the attempt is forgotten";
  const auto again = h.finish(0, 0);
  EXPECT_EQ(again->calls, 0) << "it has heard";
  const auto other = h.finish(1, 0);
  ASSERT_TRUE(other->error);
  EXPECT_EQ(other->error->message, first->error->message);
  const auto other_again = h.finish(1, 0);
  EXPECT_EQ(again->calls + other_again->calls, 0) << "now both have heard";
  h.declare(2, Harness::declaration({Harness::tensor("a"), Harness::tensor("b")}));
  h.pump();
  const auto newcomer = h.finish(2, 0);
  h.pump();
  EXPECT_TRUE(again->report && other_again->report && newcomer->report);
}

TEST(Epoch, a_survivor_waits_for_a_newcomer_that_declares_again_or_is_another_process) {
  for (const bool declares_again : {true, false}) {
    Harness h;
    h.start(2);
    h.finish(0, 0);
    h.engine.process_exited(h.sessions.at(1));
    h.generation = 1;
    h.attach(1, 2);
    h.declare(1, refused_by_itself());
    h.pump();
    if (declares_again) {
      h.declare(1, Harness::declaration({Harness::tensor("a"), Harness::tensor("b")}));
    } else {
      h.engine.process_exited(h.sessions.at(1));
      h.generation = 2;
      h.attach(1, 2);
    }
    EXPECT_EQ(h.finish(0, 0)->calls, 0);
  }
}

TEST(Epoch, a_survivor_hears_of_a_refusal_that_came_while_the_step_before_was_aborted) {
  Harness h;
  h.start(2);
  const auto step = h.finish(0, 0);
  h.finish(1, 0);
  h.engine.process_exited(h.sessions.at(1));
  h.generation = 1;
  h.attach(1, 2);
  const auto newcomer = h.declare(1, refused_by_itself());
  EXPECT_EQ(step->calls, 0) << "the lane works on it";
  h.pump();
  ASSERT_TRUE(step->error && newcomer->error);
  EXPECT_EQ(step->error->code, ErrorCode::RankLost);
  const auto next = h.finish(0, 0);
  ASSERT_TRUE(next->error);
  EXPECT_EQ(next->error->code, ErrorCode::InvalidDeclaration);
  EXPECT_EQ(h.finish(0, 0)->calls, 0) << "it has heard";
}

TEST(Epoch, a_survivor_hears_of_a_refusal_that_stands_although_another_rank_declared_after_it) {
  Harness h;
  h.start(3);
  h.finish(0, 0);
  h.engine.process_exited(h.sessions.at(1));
  h.engine.process_exited(h.sessions.at(2));
  h.generation = 1;
  h.attach(1, 3);
  h.attach(2, 3);
  h.declare(2, refused_by_itself());
  h.pump();
  const auto other = h.declare(1, Harness::declaration({Harness::tensor("a"), Harness::tensor("b")}));
  h.pump();
  ASSERT_TRUE(other->error);
  EXPECT_EQ(other->error->rank, 2);
  const auto survivor = h.finish(0, 0);
  ASSERT_TRUE(survivor->error) << "it would wait for its deadline";
  EXPECT_EQ(survivor->error->rank, 2);
}

TEST(Epoch, survivors_in_a_step_call_hear_of_a_newcomer_that_does_not_fit_them) {
  for (const bool waits : {true, false}) {
    Harness h;
    h.start(2);
    h.finish(0, 0);
    h.engine.process_exited(h.sessions.at(1));
    h.generation = 1;
    h.attach(1, 2);
    auto survivor = waits ? h.finish(0, 0) : nullptr;
    const auto newcomer = h.declare(1, Harness::declaration({Harness::tensor("a", 9), Harness::tensor("b")}));
    h.pump();
    survivor = waits ? survivor : h.finish(0, 0);
    ASSERT_TRUE(newcomer->error && survivor->error);
    EXPECT_EQ(survivor->error->code, ErrorCode::PlanMismatch);
    EXPECT_EQ(survivor->error->message, newcomer->error->message);
    EXPECT_NE(newcomer->error->path, "");
    EXPECT_EQ(survivor->error->path, "") << "the request of rank 0 has nothing wrong";
    const auto again = h.finish(0, 0);
    h.declare(1, Harness::declaration({Harness::tensor("a"), Harness::tensor("b")}));
    h.pump();
    const auto finished = h.finish(1, 0);
    h.pump();
    EXPECT_TRUE(again->report && finished->report);
  }
}

TEST(Epoch, a_job_in_which_nobody_holds_a_tensor_steps) {
  for (const plan::DataPath path : {plan::DataPath::Arena, plan::DataPath::Stats}) {
    Harness h;
    plan::RankDeclaration nothing;
    nothing.options.data_path = path;
    for (std::int64_t rank = 0; rank < 2; ++rank) {
      h.attach(rank, 2);
    }
    const auto declared = h.declare(0, nothing);
    h.declare(1, nothing);
    h.pump();
    ASSERT_TRUE(declared->result) << declared->error->message;
    EXPECT_EQ(declared->result->arena_bytes, 0u);
    const auto a = h.finish(0, 0);
    const auto b = h.finish(1, 0);
    h.pump();
    ASSERT_TRUE(a->report && b->report);
    EXPECT_EQ(a->report->groups.size(), 1u);
    EXPECT_EQ(a->report->collectives, 0);
  }
}

TEST(Epoch, a_rank_killed_between_attach_and_declare_is_lost_by_name_after_ten_seconds) {
  Harness h;
  h.attach(0, 2);
  h.attach(1, 2);
  const auto a = h.declare(0, Harness::declaration({Harness::tensor("a")}));
  h.pump();
  h.engine.process_exited(h.sessions.at(1));
  h.pass(Milliseconds(9999));
  EXPECT_EQ(a->calls, 0);
  h.pass(Milliseconds(1));
  ASSERT_TRUE(a->error);
  EXPECT_EQ(a->error->code, ErrorCode::RankLost);
  EXPECT_EQ(a->error->rank, 1);
  h.generation = 1;
  h.attach(1, 2);
  const auto b = h.declare(0, Harness::declaration({Harness::tensor("a")}));
  const auto c = h.declare(1, Harness::declaration({Harness::tensor("a")}));
  h.pump();
  EXPECT_TRUE(b->result && c->result);
}

TEST(Epoch, a_rank_killed_before_it_declared_anew_is_lost_by_name_after_ten_seconds) {
  Harness h;
  h.attach(0, 2);
  h.attach(1, 2);
  const auto first = h.declare(0, Harness::declaration({Harness::tensor("a")}));
  const auto second = h.declare(1, Harness::declaration({Harness::tensor("a")}));
  h.pump();
  ASSERT_TRUE(first->result && second->result);
  const auto again = h.declare(0, Harness::declaration({Harness::tensor("b")}));
  h.pump();
  h.engine.process_exited(h.sessions.at(1));
  h.pass(Milliseconds(9999));
  EXPECT_EQ(again->calls, 0);
  h.pass(Milliseconds(1));
  ASSERT_TRUE(again->error);
  EXPECT_EQ(again->error->code, ErrorCode::RankLost);
  EXPECT_EQ(again->error->rank, 1);
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
  EXPECT_EQ(h.engine.attach(request).error().path, "meshes[0].axes");
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

TEST(Epoch, a_declare_that_times_out_names_the_lowest_ranks_of_many) {
  Harness h;
  h.attach(0, 200);
  const auto a = h.declare(0, Harness::declaration({Harness::tensor("a")}));
  h.pump();
  h.pass(Milliseconds(301'000));
  ASSERT_TRUE(a->error);
  EXPECT_EQ(a->error->code, ErrorCode::DeclareTimeout);
  ASSERT_EQ(a->error->ranks.size(), 64U);
  EXPECT_EQ(a->error->ranks.front(), 1);
  EXPECT_EQ(a->error->ranks.back(), 64);
  EXPECT_THAT(a->error->message, HasSubstr("ranks 1, 2, 3"));
  EXPECT_THAT(a->error->message, HasSubstr("20 and 179 more not attached"));
}

// Late calls are answered from the plan, so its memory is in use until the job ends or another takes its place.
TEST(Epoch, the_plan_of_an_epoch_that_ended_counts_as_long_as_it_is_kept) {
  Harness h;
  h.start(2);
  const std::uint64_t held = h.engine.declared_bytes().held();
  EXPECT_GT(held, 0U);
  EXPECT_TRUE(h.engine.detach(h.sessions.at(1)));
  h.pump();
  EXPECT_TRUE(h.engine.plan_of(1000, "job"));
  EXPECT_EQ(h.engine.declared_bytes().held(), held);
  EXPECT_TRUE(h.engine.detach(h.sessions.at(0)));
  h.pump();
  EXPECT_EQ(h.engine.declared_bytes().held(), 0U);
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
  EXPECT_EQ(h.engine.status(1000)[0].absent_ranks, std::vector<std::int64_t>{1});
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
