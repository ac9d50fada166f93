// Ranks that go while calls wait or the lane works: every call is answered once, and not before the lane is quiet.

#include "unit/engine/harness.hpp"

#include <gmock/gmock.h>

namespace gradsync::engine {
namespace {

using ::testing::HasSubstr;

TEST(Leaving, a_rank_that_detaches_gets_an_answer_to_its_own_waiting_calls) {
  Harness h;
  h.start(2);
  const auto step = h.finish(0, 0);
  EXPECT_TRUE(h.engine.detach(h.sessions.at(0)));
  ASSERT_EQ(step->calls, 1);
  EXPECT_EQ(step->error->code, ErrorCode::RankLost);
  h.generation = 1;
  h.attach(0, 2);
  const auto declared = h.declare(0, Harness::declaration({Harness::tensor("x")}));
  EXPECT_TRUE(h.engine.detach(h.sessions.at(0)));
  ASSERT_EQ(declared->calls, 1);
  EXPECT_EQ(declared->error->code, ErrorCode::RankLost);
}

TEST(Leaving, the_last_rank_is_answered_when_the_lane_has_let_go_of_its_memory) {
  Harness h;
  h.start(1);
  const auto step = h.finish(0, 0);
  EXPECT_TRUE(h.engine.detach(h.sessions.at(0)));
  EXPECT_TRUE(h.engine.status(1000).empty());
  EXPECT_EQ(step->calls, 0);
  EXPECT_FALSE(h.engine.idle());
  h.pump();
  ASSERT_EQ(step->calls, 1);
  EXPECT_EQ(step->error->code, ErrorCode::RankLost);
  EXPECT_TRUE(h.engine.idle());
  EXPECT_EQ(h.lane.unmapped.size(), 1u);
}

TEST(Leaving, a_superseded_step_is_answered_when_the_lane_is_quiet) {
  Harness h;
  h.start(2);
  const auto a = h.finish(0, 0);
  const auto b = h.finish(1, 0);
  AttachRequest restart = h.request(0, 2);
  restart.restart_count = 1;
  restart.pid = 500;
  restart.client_id = "new";
  ASSERT_TRUE(h.engine.attach(restart));
  EXPECT_EQ(a->calls + b->calls, 0);
  h.pump();
  ASSERT_TRUE(a->error && b->error);
  EXPECT_EQ(a->error->code, ErrorCode::Superseded);
  EXPECT_FALSE(a->error->epoch) << "an old restart has nothing to go on with";
  EXPECT_EQ(h.lane.unmapped.size(), 2u);
  EXPECT_EQ(h.engine.status(1000).size(), 1u);
}

TEST(Leaving, a_rank_given_up_is_told_why_when_it_calls_again) {
  Harness h;
  h.start(2);
  h.engine.connection_lost(h.sessions.at(1));
  h.pass(Milliseconds(2000));
  const auto late = h.finish(1, 0);
  ASSERT_TRUE(late->error);
  EXPECT_EQ(late->error->code, ErrorCode::RankLost);
  EXPECT_THAT(late->error->message, HasSubstr("did not come back"));
  EXPECT_EQ(late->error->rank, 1);
}

TEST(Leaving, a_newcomer_that_goes_before_it_declared_does_not_disturb_those_who_wait) {
  Harness h;
  h.start(2);
  h.engine.process_exited(h.sessions.at(1));
  h.finish(0, 0);  // told of the loss
  const auto waiting = h.finish(0, 0);
  h.generation = 1;
  h.attach(1, 2);
  h.engine.process_exited(h.sessions.at(1));
  EXPECT_EQ(waiting->calls, 0);
  h.generation = 2;
  EXPECT_EQ(h.attach(1, 2).epoch, 2u);
  h.declare(1, Harness::declaration({Harness::tensor("a"), Harness::tensor("b")}));
  h.pump();
  h.finish(1, 0);
  h.pump();
  EXPECT_TRUE(waiting->report);
}

TEST(Leaving, weights_of_a_newcomer_are_not_compared_with_those_of_long_ago) {
  Harness h;
  plan::RankDeclaration declaration = Harness::declaration({Harness::tensor("a")});
  declaration.weight_fingerprints = {"initial"};
  for (const std::int64_t rank : {0, 1}) {
    h.attach(rank, 2);
  }
  h.declare(0, declaration);
  h.declare(1, declaration);
  h.pump();
  h.finish(0, 0);
  h.finish(1, 0);
  h.pump();
  h.engine.process_exited(h.sessions.at(1));
  h.generation = 1;
  h.attach(1, 2);
  const auto newcomer = h.declare(1, declaration);
  h.pump();
  EXPECT_EQ(newcomer->calls, 0) << "rank 0 has trained on: its weights are no longer the declared ones";
  const auto stale = h.finish(0, 1);
  ASSERT_TRUE(stale->error);
  EXPECT_THAT(stale->error->hint, HasSubstr("gradients.declare again"));
  declaration.weight_fingerprints = {"trained"};
  const auto survivor = h.declare(0, declaration);
  h.pump();
  ASSERT_TRUE(newcomer->error && survivor->error);
  EXPECT_EQ(newcomer->error->code, ErrorCode::WeightsDiverged);
}

/// A tensor that exists on one rank alone, as a layer of a pipeline stage does.
plan::TensorDeclaration only_on(const std::string& name, std::int64_t rank) {
  plan::TensorDeclaration tensor = Harness::tensor(name);
  tensor.placements = {{{"dp"}, plan::Only{{rank}}}};
  return tensor;
}

TEST(Leaving, a_survivor_may_be_ready_with_what_it_holds_alone_before_the_epoch_forms_again) {
  Harness h;
  const plan::RankDeclaration first = Harness::declaration({only_on("a", 0)});
  const plan::RankDeclaration second = Harness::declaration({only_on("b", 1)});
  h.attach(0, 2);
  h.attach(1, 2);
  h.declare(0, first);
  h.declare(1, second);
  h.pump();
  h.engine.process_exited(h.sessions.at(0));
  h.finish(1, 0);  // told of the loss
  const auto waiting = h.finish(1, 0);
  h.pump();
  EXPECT_EQ(waiting->calls, 0) << "no plan is on the lane";
  h.generation = 1;
  h.attach(0, 2);
  h.declare(0, first);
  h.pump();
  h.finish(0, 0);
  h.pump();
  ASSERT_TRUE(waiting->report) << (waiting->error ? waiting->error->message : "no answer");
}

TEST(Leaving, a_survivor_that_released_its_arena_has_to_declare_again) {
  Harness h;
  h.start(2, {Harness::tensor("a")});
  EXPECT_TRUE(h.engine.release(h.sessions.at(0), 1));
  h.engine.process_exited(h.sessions.at(1));
  h.generation = 1;
  h.attach(1, 2);
  const auto first = h.declare(1, Harness::declaration({Harness::tensor("a")}));
  h.pump();
  ASSERT_TRUE(first->error);
  EXPECT_EQ(first->error->rank, 0);
  EXPECT_THAT(first->error->message, HasSubstr("released"));
  h.finish(0, 0);
  EXPECT_EQ(h.finish(0, 0)->error->code, ErrorCode::NotDeclared);
  const auto a = h.declare(0, Harness::declaration({Harness::tensor("a")}));
  const auto b = h.declare(1, Harness::declaration({Harness::tensor("a")}));
  h.pump();
  EXPECT_TRUE(a->result && b->result);
}

TEST(Leaving, ranks_that_attach_anew_before_a_step_are_not_matched_with_what_others_declared_before) {
  Harness h;
  plan::RankDeclaration before = Harness::declaration({Harness::tensor("a")});
  before.weight_fingerprints = {"initial"};
  plan::RankDeclaration after = before;
  after.options.accumulate = 2;
  for (const std::int64_t rank : {0, 1}) {
    h.attach(rank, 2);
  }
  h.declare(0, before);
  h.declare(1, before);
  h.pump();
  EXPECT_TRUE(h.engine.detach(h.sessions.at(1)));
  h.attach(1, 2);
  const auto first = h.declare(1, after);
  h.pump();
  EXPECT_EQ(first->calls, 0) << "rank 0 attaches anew as well, but a little later";
  EXPECT_TRUE(h.engine.detach(h.sessions.at(0)));
  h.attach(0, 2);
  const auto second = h.declare(0, after);
  h.pump();
  EXPECT_EQ(first->calls, 1);
  EXPECT_EQ(second->calls, 1);
  const auto a = h.finish(0, 0);
  const auto b = h.finish(1, 0);
  h.pump();
  EXPECT_TRUE(a->report && b->report);
}

TEST(Leaving, a_survivor_of_a_rank_that_died_before_a_step_need_not_declare) {
  Harness h;
  plan::RankDeclaration declaration = Harness::declaration({Harness::tensor("a")});
  declaration.weight_fingerprints = {"initial"};
  for (const std::int64_t rank : {0, 1}) {
    h.attach(rank, 2);
  }
  h.declare(0, declaration);
  h.declare(1, declaration);
  h.pump();
  h.engine.process_exited(h.sessions.at(1));
  h.finish(0, 0);  // told of the loss
  h.generation = 1;
  h.attach(1, 2);
  const auto heir = h.declare(1, declaration);
  h.pump();
  EXPECT_EQ(heir->calls, 1);
  const auto a = h.finish(0, 0);
  const auto b = h.finish(1, 0);
  h.pump();
  EXPECT_TRUE(a->report && b->report);
}

}  // namespace
}  // namespace gradsync::engine
