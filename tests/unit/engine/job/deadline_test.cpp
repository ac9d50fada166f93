// Deadlines: pauses, half-time warnings, epochs that form, and times that do not fit a clock.

#include "unit/engine/harness.hpp"

#include <gmock/gmock.h>

#include <limits>

namespace gradsync::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

EngineOptions second() {
  EngineOptions options;
  options.deadlines.declare = options.deadlines.first_step = options.deadlines.step = Milliseconds(1000);
  return options;
}

TEST(Deadline, a_pause_counts_only_from_the_moment_somebody_waits) {
  Harness h(second());
  h.start(2);
  EXPECT_TRUE(h.engine.pause(h.sessions.at(1), true));
  h.pass(Milliseconds(5000));
  const auto a = h.finish(0, 0);
  h.pass(Milliseconds(300));
  EXPECT_TRUE(h.engine.pause(h.sessions.at(1), false));
  h.pass(Milliseconds(999));
  EXPECT_EQ(a->calls, 0);
  h.pass(Milliseconds(1));
  ASSERT_TRUE(a->error) << "5 s of pause before the call are not credited to it";
  EXPECT_EQ(a->error->code, ErrorCode::StepTimeout);
}

TEST(Deadline, two_pauses_at_once_count_once) {
  Harness h(second());
  h.start(3);
  const auto a = h.finish(0, 0);
  EXPECT_TRUE(h.engine.pause(h.sessions.at(1), true));
  EXPECT_TRUE(h.engine.pause(h.sessions.at(2), true));
  h.pass(Milliseconds(4000));
  EXPECT_TRUE(h.engine.pause(h.sessions.at(1), false));
  EXPECT_TRUE(h.engine.pause(h.sessions.at(2), false));
  h.pass(Milliseconds(1000));
  EXPECT_TRUE(a->error);
}

TEST(Deadline, the_pause_of_a_rank_that_has_finished_stops_no_clock) {
  Harness h(second());
  h.start(3);
  const auto a = h.finish(0, 0);
  h.finish(1, 0);
  EXPECT_TRUE(h.engine.pause(h.sessions.at(1), true));
  h.pass(Milliseconds(500));
  EXPECT_TRUE(h.engine.pause(h.sessions.at(1), false));
  h.pass(Milliseconds(500));
  EXPECT_TRUE(a->error) << "rank 2 was waited for, and it did not pause";
}

TEST(Deadline, a_paused_rank_that_calls_starts_the_clock_again) {
  Harness h(second());
  h.start(3);
  EXPECT_TRUE(h.engine.pause(h.sessions.at(1), true));
  const auto a = h.finish(0, 0);
  h.pass(Milliseconds(10'000));
  EXPECT_EQ(a->calls, 0);
  h.finish(1, 0);
  h.pass(Milliseconds(999));
  EXPECT_EQ(a->calls, 0);
  h.pass(Milliseconds(1));
  EXPECT_TRUE(a->error);
}

TEST(Deadline, a_pause_does_not_bring_the_half_time_warning_forward) {
  Harness h(second());
  h.start(2);
  h.finish(0, 0);
  h.pass(Milliseconds(100));
  EXPECT_TRUE(h.engine.pause(h.sessions.at(1), true));
  h.pass(Milliseconds(5000));
  h.events.clear();
  EXPECT_TRUE(h.engine.pause(h.sessions.at(1), false));
  h.pass(Milliseconds(399));
  EXPECT_THAT(h.events, IsEmpty());
  h.pass(Milliseconds(1));
  EXPECT_EQ(h.events.size(), 1u);
}

TEST(Deadline, a_paused_rank_that_has_not_declared_stops_the_declare_deadline) {
  Harness h(second());
  h.attach(0, 2);
  h.attach(1, 2);
  EXPECT_TRUE(h.engine.pause(h.sessions.at(1), true));
  const auto a = h.declare(0, Harness::declaration({Harness::tensor("a")}));
  h.pump();
  h.pass(Milliseconds(5000));
  EXPECT_EQ(a->calls, 0);
  EXPECT_FALSE(h.engine.next_deadline());
  EXPECT_TRUE(h.engine.pause(h.sessions.at(1), false));
  h.pass(Milliseconds(999));
  EXPECT_EQ(a->calls, 0);
  h.pass(Milliseconds(1));
  ASSERT_TRUE(a->error);
  EXPECT_EQ(a->error->code, ErrorCode::DeclareTimeout);
}

TEST(Deadline, a_paused_rank_that_dies_lets_the_clock_run_on) {
  Harness h(second());
  h.attach(0, 2);
  h.attach(1, 2);
  EXPECT_TRUE(h.engine.pause(h.sessions.at(1), true));
  const auto a = h.declare(0, Harness::declaration({Harness::tensor("a")}));
  h.pump();
  h.pass(Milliseconds(5000));
  h.engine.process_exited(h.sessions.at(1));
  h.pass(Milliseconds(999));
  EXPECT_EQ(a->calls, 0);
  h.pass(Milliseconds(1));
  EXPECT_TRUE(a->error);
}

TEST(Deadline, a_step_that_waits_for_an_epoch_says_so) {
  Harness h(second());
  h.start(2);
  h.engine.process_exited(h.sessions.at(1));
  h.finish(0, 0);  // told of the loss
  const auto waiting = h.finish(0, 0);
  h.pass(Milliseconds(1000));
  ASSERT_TRUE(waiting->error);
  EXPECT_EQ(waiting->error->code, ErrorCode::StepTimeout);
  EXPECT_THAT(waiting->error->ranks, ElementsAre(1));
  EXPECT_THAT(waiting->error->message, HasSubstr("rank 1 not attached"));
}

TEST(Deadline, a_failing_step_warns_no_more) {
  Harness h(second());
  h.start(3);
  FinishRequest request = Harness::ready_all();
  h.ready(0, 0);
  h.ready(1, 0);
  h.ready(2, 0);  // the lane works
  h.finish(0, 0, [] {
    FinishRequest ready;
    ready.ready = {0};
    return ready;
  }());
  h.engine.process_exited(h.sessions.at(2));
  h.events.clear();
  h.pass(Milliseconds(600));
  EXPECT_THAT(h.events, IsEmpty());
}

TEST(Deadline, the_longest_timeout_is_long_and_not_over_at_once) {
  Harness h;
  h.start(2);
  FinishRequest request = Harness::ready_all();
  request.timeout = Milliseconds(std::numeric_limits<std::int64_t>::max());
  const auto a = h.finish(0, 0, request);
  h.pass(Milliseconds(3'600'000));
  EXPECT_EQ(a->calls, 0);
  ASSERT_TRUE(h.engine.next_deadline());
  EXPECT_GT(*h.engine.next_deadline(), h.now);
}

TEST(Deadline, replicas_are_checked_in_the_first_three_steps_and_then_as_often_as_said) {
  EngineOptions options;
  for (const auto& [every, checked] : std::map<std::int64_t, std::vector<bool>>{
           {0, {true, true, true, false, false, false}}, {4, {true, true, true, false, true, false}}}) {
    options.check_every = every;
    Harness h(options);
    plan::TensorDeclaration tensor = Harness::tensor("a");
    tensor.placements = {{{"dp"}, plan::Replicate{}}};
    h.start(2, {tensor});
    std::vector<bool> seen;
    for (int step = 0; step < 6; ++step) {
      h.finish(0, step);
      h.finish(1, step);
      h.pump();
      seen.push_back(h.lane.reduced.at(static_cast<std::size_t>(step)).compare);
    }
    EXPECT_EQ(seen, checked) << "check_every " << every;
  }
}

TEST(Deadline, a_lane_that_hangs_keeps_nobody_waiting) {
  Harness h(second());
  h.start(2);
  const auto a = h.finish(0, 7);
  const auto b = h.finish(1, 7);
  ASSERT_FALSE(h.lane.commands.empty()) << "the lane owes the reductions";
  h.pass(Milliseconds(1000));
  EXPECT_EQ(a->calls, 0) << "the step failed, but the lane may come to rest";
  ASSERT_EQ(h.engine.next_deadline(), h.now + Milliseconds(3000));
  h.pass(Milliseconds(3000));
  for (const auto& outcome : {a, b}) {
    ASSERT_TRUE(outcome->error);
    EXPECT_EQ(outcome->error->code, ErrorCode::InternalError);
    EXPECT_THAT(outcome->error->message, HasSubstr("the lane did not stop within 3.0 s"));
    EXPECT_THAT(outcome->error->message, HasSubstr("it may still change gradients"));
    EXPECT_EQ(outcome->error->step, 7);
    EXPECT_FALSE(outcome->error->epoch) << "there is nothing to go on with yet";
  }
  EXPECT_FALSE(h.engine.next_deadline()) << "told once";
  EXPECT_FALSE(h.engine.idle());
  const auto again = h.finish(0, 7);
  ASSERT_TRUE(again->error) << "at once: no step can begin while the lane holds the memory";
  EXPECT_EQ(again->error->code, ErrorCode::InternalError);

  h.pump();  // it comes back after all
  const auto late = h.finish(0, 7);
  ASSERT_TRUE(late->error);
  EXPECT_EQ(late->error->code, ErrorCode::StepTimeout) << "the record of the attempt";
  const auto c = h.finish(0, 7);
  const auto d = h.finish(1, 7);
  ASSERT_TRUE(d->error) << "rank 1 has not heard where to go on";
  const auto e = h.finish(1, 7);
  h.pump();
  EXPECT_TRUE(c->report);
  EXPECT_TRUE(e->report);
  EXPECT_EQ(a->calls + b->calls, 2);
}

TEST(Deadline, a_lane_that_works_for_others_does_not_hang) {
  Harness h(second());
  h.start(2);
  const auto a = h.finish(0, 0);
  h.finish(1, 0);
  h.pass(Milliseconds(1000));
  h.pass(Milliseconds(2999));
  h.engine.on_lane_report(device::kHostLane, device::Unmapped{12345});
  h.pass(Milliseconds(2999));
  EXPECT_EQ(a->calls, 0) << "it reported something 2,999 ms ago";
  h.pump();
  ASSERT_TRUE(a->error);
  EXPECT_EQ(a->error->code, ErrorCode::StepTimeout);
}

TEST(Deadline, a_rank_that_left_a_hanging_lane_is_answered_too) {
  Harness h(second());
  h.start(2);
  const auto a = h.finish(0, 0);
  const auto b = h.finish(1, 0);
  h.engine.process_exited(h.sessions.at(0));
  h.engine.process_exited(h.sessions.at(1));
  EXPECT_TRUE(h.engine.status({}).empty());
  EXPECT_EQ(a->calls + b->calls, 0);
  h.pass(Milliseconds(3000));
  EXPECT_EQ(a->calls, 1);
  EXPECT_EQ(b->calls, 1);
  h.pump();
  EXPECT_TRUE(h.engine.idle());
  EXPECT_EQ(a->calls + b->calls, 2);
}

TEST(Deadline, the_first_step_of_a_later_epoch_may_compile_as_long_as_that_of_the_first) {
  EngineOptions options = second();
  options.deadlines.first_step = Milliseconds(5000);
  Harness h(options);
  h.start(2);
  h.finish(0, 0);
  h.finish(1, 0);
  h.pump();
  h.engine.process_exited(h.sessions.at(1));
  h.pump();
  ++h.generation;
  h.attach(1, 2);
  h.declare(1, Harness::declaration({Harness::tensor("a"), Harness::tensor("b")}));
  h.pump();
  h.keys[0] = h.keys.at(1);
  const auto a = h.finish(0, 1);
  h.pass(Milliseconds(4999));
  EXPECT_EQ(a->calls, 0) << "the new process of rank 1 compiles";
  h.finish(1, 1);
  h.pump();
  ASSERT_TRUE(a->report);
  const auto b = h.finish(0, 2);
  h.pass(Milliseconds(1000));
  EXPECT_EQ(b->calls, 1);
}

}  // namespace
}  // namespace gradsync::engine
