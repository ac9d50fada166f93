// The norm is queued behind the last bucket: what happens to a step in which both are still the lane's.

#include "unit/engine/harness.hpp"

#include <gmock/gmock.h>

namespace gradsync::engine {
namespace {

using ::testing::HasSubstr;

class QueuedNorm : public ::testing::Test {
 protected:
  /// Both ranks wait in step 7; the lane has done nothing of it.
  void ask_all(FinishKind kind = FinishKind::Finish) {
    FinishRequest request = Harness::ready_all();
    request.kind = kind;
    a = h.finish(0, 7, request);
    b = h.finish(1, 7, request);
  }

  void deliver(device::LaneReport report) { h.engine.on_lane_report(device::kHostLane, std::move(report)); }

  void expect_next_step() {
    const auto c = h.finish(0, 8);
    const auto d = h.finish(1, 8);
    h.pump();
    ASSERT_TRUE(c->report && d->report);
    EXPECT_EQ(c->report->step, 8);
  }

  Harness h;
  std::shared_ptr<Outcome> a;
  std::shared_ptr<Outcome> b;
};

TEST_F(QueuedNorm, the_lane_has_buckets_and_norm_in_order_and_all_threads_before_it_reports_anything) {
  h.start(2);
  h.lane.was_wide.clear();
  ask_all();
  EXPECT_EQ(h.lane.was_wide, (std::vector{true, true})) << "a lane may execute what it gets at once";
  ASSERT_EQ(h.lane.commands.size(), 2u) << "two small tensors are one bucket";
  EXPECT_TRUE(std::holds_alternative<device::ReduceBucket>(h.lane.commands[0]));
  EXPECT_TRUE(std::holds_alternative<device::FinishStep>(h.lane.commands[1]));
  EXPECT_TRUE(h.lane.wide);
  deliver(h.lane.answer_next());
  EXPECT_TRUE(h.lane.wide) << "the norm is to come";
  EXPECT_EQ(a->calls + b->calls, 0);
  EXPECT_EQ(h.engine.status({}).at(0).state, "stepping");
  EXPECT_THAT(h.engine.status({}).at(0).reason, HasSubstr("waits for the lane: 1 of 1 buckets reduced"));
  deliver(h.lane.answer_next());
  ASSERT_TRUE(a->report && b->report);
  EXPECT_FALSE(h.lane.wide);
}

TEST_F(QueuedNorm, the_report_has_the_time_of_every_bucket) {
  h.start(2);
  ask_all();
  h.pass(Milliseconds(20));
  h.pump();
  ASSERT_TRUE(a->report);
  EXPECT_DOUBLE_EQ(a->report->timings.reduce_s, 0.001);
  EXPECT_DOUBLE_EQ(a->report->timings.total_s, 0.020);
  EXPECT_EQ(a->report->step, 7);
}

TEST_F(QueuedNorm, a_rank_lost_between_bucket_and_norm_fails_the_step_for_all) {
  for (const bool detaches : {false, true}) {
    Harness world;
    world.start(2);
    const auto first = world.finish(0, 7);
    const auto second = world.finish(1, 7);
    world.engine.on_lane_report(device::kHostLane, world.lane.answer_next());
    if (detaches) {
      EXPECT_TRUE(world.engine.detach(world.sessions.at(1)));
    } else {
      world.engine.process_exited(world.sessions.at(1));
    }
    EXPECT_EQ(first->calls + second->calls, 0) << "the lane has the norm";
    EXPECT_EQ(world.lane.aborted.size(), 1u);
    world.pump();
    ASSERT_TRUE(first->error && second->error);
    EXPECT_EQ(first->error->code, ErrorCode::RankLost);
    EXPECT_EQ(first->error->epoch, 2u);
    EXPECT_TRUE(world.lane.finished.empty());
  }
}

TEST_F(QueuedNorm, a_rank_lost_while_the_result_is_on_its_way_has_no_step) {
  h.start(2);
  ask_all();
  device::LaneReport reduced = h.lane.answer_next();
  device::LaneReport finished = h.lane.answer_next();
  h.engine.process_exited(h.sessions.at(1));
  deliver(std::move(reduced));
  deliver(std::move(finished));
  EXPECT_EQ(a->calls, 0);
  h.pump();
  ASSERT_TRUE(a->error);
  EXPECT_EQ(a->error->code, ErrorCode::RankLost);
  EXPECT_EQ(h.metrics.steps_committed.Value(), 0);
}

TEST_F(QueuedNorm, reports_of_an_epoch_that_ended_are_not_those_of_the_next) {
  h.start(2);
  ask_all();
  h.engine.process_exited(h.sessions.at(1));
  h.pump();
  ++h.generation;
  h.attach(1, 2);
  h.declare(1, Harness::declaration({Harness::tensor("a"), Harness::tensor("b")}));
  h.pump();
  h.keys[0] = h.keys.at(1);
  EXPECT_EQ(h.keys[0].epoch, 2u);
  EXPECT_EQ(h.keys[0].attempt, 0u);
  ask_all();
  deliver(device::Reduced{1, 0, 0, 0.5});  // of the plan of epoch 1, with this attempt's number
  EXPECT_EQ(h.metrics.buckets_reduced.Value(), 0);
  deliver(device::Finished{1, 0, {}});
  EXPECT_EQ(a->calls, 0);
  h.pump();
  ASSERT_TRUE(a->report && b->report);
  EXPECT_EQ(a->report->timings.reduce_s, 0.001);
}

TEST_F(QueuedNorm, a_bucket_that_fails_is_the_error_although_the_norm_fails_too) {
  h.start(2);
  ask_all();
  h.lane.fail_reductions = true;
  device::LaneReport failed = h.lane.answer_next();
  h.lane.commands.pop_front();  // the lane has refused the norm before it hears of an Abort
  device::Failed refused = std::get<device::Failed>(failed);
  refused.message = "bucket 0 does not hold the sums of attempt 0";
  deliver(std::move(failed));
  deliver(refused);
  EXPECT_EQ(a->calls, 0) << "the Abort is not answered";
  h.pump();
  ASSERT_TRUE(a->error && b->error);
  EXPECT_EQ(a->calls + b->calls, 2);
  EXPECT_EQ(a->error->code, ErrorCode::StepFailed);
  EXPECT_THAT(a->error->message, HasSubstr("scripted failure"));
  EXPECT_EQ(*a->error, *b->error);
  EXPECT_EQ(h.metrics.steps_failed.Value(), 1);
  h.lane.fail_reductions = false;
  expect_next_step();
}

TEST_F(QueuedNorm, a_measured_norm_behind_its_bucket_leaves_the_step_open) {
  h.start(2);
  ask_all(FinishKind::NormOnly);
  EXPECT_FALSE(std::get<device::FinishStep>(h.lane.commands.back()).apply);
  h.pump();
  ASSERT_TRUE(a->report && b->report);
  EXPECT_EQ(a->report->next_attempt, a->report->attempt);
  EXPECT_FALSE(h.engine.idle()) << "it has begun, and its clip is to come";
  const auto clip = [this](std::int64_t rank) {
    auto outcome = std::make_shared<Outcome>();
    ClipRequest request;
    request.key = h.keys.at(rank);
    request.step = 7;
    h.engine.clip(h.sessions.at(rank), request, h.listener(rank, outcome));
    return outcome;
  };
  const auto c = clip(0);
  const auto d = clip(1);
  h.pump();
  ASSERT_TRUE(c->report && d->report);
  EXPECT_EQ(c->report->next_attempt, 1u);
  expect_next_step();
}

TEST_F(QueuedNorm, a_drain_that_ends_leaves_a_step_that_the_lane_has_begun_unanswered) {
  h.start(2);
  ask_all();
  deliver(h.lane.answer_next());
  h.engine.halt();
  EXPECT_FALSE(h.engine.at_rest());
  h.pump();
  EXPECT_TRUE(h.engine.at_rest());
  EXPECT_EQ(a->calls + b->calls, 0) << "its successor tells from the record";
  EXPECT_TRUE(h.lane.finished.empty());
}

TEST_F(QueuedNorm, two_jobs_share_the_lane_and_each_gets_its_own) {
  h.start(2);
  ask_all();
  AttachRequest other = h.request(0, 1);
  other.job = "other";
  const Result<AttachResult> attached = h.engine.attach(other);
  ASSERT_TRUE(attached);
  h.sessions[9] = attached->session;
  h.keys[9] = {attached->epoch, attached->attempt};
  const auto declared = h.declare(9, Harness::declaration({Harness::tensor("x")}));
  h.engine.on_plan(h.planner.plan_next());  // validated
  while (!h.planner.requests.empty()) {
    h.engine.on_plan(h.planner.plan_next());
  }
  h.engine.process_exited(h.sessions.at(1));
  h.pump();
  ASSERT_TRUE(a->error);
  ASSERT_TRUE(declared->result) << "the other job has not noticed";
  const auto own = h.finish(9, 3);
  h.pump();
  ASSERT_TRUE(own->report);
  EXPECT_EQ(own->report->step, 3);
}

}  // namespace
}  // namespace gradsync::engine
