// The step machine between the moment at which an attempt is prepared and its verdict.

#include "engine/step/step_machine.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace gradsync::engine {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

/// One bucket of one tensor, which two ranks hold. Both have asked, and the lane has done its part.
class Verdicts : public ::testing::Test {
 protected:
  Verdicts() {
    const std::vector<LaneShare> host{{}};
    EXPECT_THAT(machine.open(host), IsEmpty());
  }

  static std::shared_ptr<plan::Plan> plan_of_one_bucket() {
    auto plan = std::make_shared<plan::Plan>();
    plan->world_size = 2;
    plan->clip_groups.resize(1);
    plan->tensors.emplace_back().declaration.name = "t";
    plan->buckets.emplace_back().tensors = {0};
    plan->layouts.resize(1);
    plan->layouts[0].tensors = {0};
    plan->layouts[0].bucket_rows = {{0}};
    plan->layout_of = {0, 0};
    return plan;
  }

  Actions finish(std::int64_t rank) {
    FinishRequest request;
    request.key = {1, machine.attempt()};
    request.step = 7;
    request.ready_all = true;
    return machine.on_finish(rank, request, start, start + std::chrono::seconds(10));
  }

  Actions import(std::int64_t rank) {
    return machine.on_import(rank, {{1, machine.attempt()}, "state", {}}, start, start + std::chrono::seconds(10));
  }

  /// `clips`: the finish multiplies everything.
  Actions prepared(bool clips = false) {
    static_cast<void>(finish(0));
    static_cast<void>(finish(1));
    machine.on_reduced(device::kHostLane, machine.attempt());
    device::StepMath math;
    math.norm = 3;
    math.groups.resize(1);
    math.groups[0].multiply = clips;
    math.groups[0].multiplier = 0.5;
    return machine.on_finished(device::kHostLane, machine.attempt(), math);
  }

  template <typename T>
  static const T* find(const Actions& actions) {
    for (const Action& action : actions) {
      if (const T* found = std::get_if<T>(&action)) {
        return found;
      }
    }
    return nullptr;
  }

  static Error lost() { return make_error(ErrorCode::RankLost, "rank 3 of another node was lost"); }

  const TimePoint start{std::chrono::seconds(100)};
  StepMachine machine{plan_of_one_bucket(), 1};
};

TEST_F(Verdicts, are_asked_for_when_the_lane_has_done_all) {
  const Actions actions = prepared();
  ASSERT_THAT(actions, SizeIs(1));
  ASSERT_NE(find<Prepare>(actions), nullptr);
  EXPECT_EQ(find<Prepare>(actions)->math.norm, 3);
  EXPECT_EQ(machine.attempt(), 0U);
  EXPECT_TRUE(machine.begun());
  EXPECT_FALSE(machine.busy());
  EXPECT_EQ(machine.waits_for(), "the verdict of all nodes");
}

TEST_F(Verdicts, that_an_attempt_failed_give_the_error_and_the_next_attempt) {
  static_cast<void>(prepared());
  const Actions actions = machine.on_verdict(lost());
  ASSERT_THAT(actions, SizeIs(1));
  const auto* failed = find<AttemptFailed>(actions);
  ASSERT_NE(failed, nullptr);
  EXPECT_EQ(failed->attempt, 0U);
  EXPECT_TRUE(failed->begun);
  EXPECT_EQ(failed->error.code, ErrorCode::RankLost);
  EXPECT_EQ(failed->error.epoch, 1U);
  EXPECT_EQ(failed->error.attempt, 1U);
  EXPECT_EQ(machine.attempt(), 1U);
  EXPECT_FALSE(machine.begun()) << "nothing is left of it";
  static_cast<void>(prepared());
  EXPECT_NE(find<Committed>(machine.on_verdict(std::nullopt)), nullptr);
}

TEST_F(Verdicts, are_the_only_end_of_what_is_voted_on) {
  static_cast<void>(prepared());
  EXPECT_THAT(machine.fail(lost()), IsEmpty());
  EXPECT_FALSE(machine.failing());
  EXPECT_EQ(machine.attempt(), 0U);
}

TEST_F(Verdicts, are_asked_for_when_time_is_over_and_nothing_fails_here) {
  static_cast<void>(prepared());
  const Actions actions = machine.on_time(start + std::chrono::hours(1));
  ASSERT_THAT(actions, SizeIs(1));
  ASSERT_NE(find<PeersOverdue>(actions), nullptr);
  EXPECT_FALSE(find<PeersOverdue>(actions)->half);
  EXPECT_THAT(machine.on_time(start + std::chrono::hours(2)), IsEmpty());
  EXPECT_EQ(machine.next_deadline(), std::nullopt);
  EXPECT_FALSE(machine.failing());
  EXPECT_EQ(machine.attempt(), 0U);
}

TEST_F(Verdicts, of_done_come_before_what_ended_the_epoch_meanwhile) {
  static_cast<void>(prepared());
  static_cast<void>(machine.fail(lost()));
  static_cast<void>(machine.fail(make_error(ErrorCode::StepTimeout, "later")));
  const Actions actions = machine.on_verdict(std::nullopt);
  ASSERT_THAT(actions, SizeIs(2));
  EXPECT_TRUE(std::holds_alternative<Committed>(actions[0]));
  const auto* failed = find<AttemptFailed>(actions);
  ASSERT_NE(failed, nullptr);
  EXPECT_EQ(failed->attempt, 1U) << "of the next attempt, which nobody has begun";
  EXPECT_FALSE(failed->begun);
  EXPECT_EQ(failed->error.code, ErrorCode::RankLost) << "the first reason";
  EXPECT_EQ(machine.attempt(), 2U);
}

TEST_F(Verdicts, of_failed_end_an_attempt_once_whatever_ended_the_epoch_meanwhile) {
  static_cast<void>(prepared());
  static_cast<void>(machine.fail(make_error(ErrorCode::StaleEpoch, "the epoch is over")));
  const Actions actions = machine.on_verdict(lost());
  ASSERT_THAT(actions, SizeIs(1));
  EXPECT_EQ(find<AttemptFailed>(actions)->error.code, ErrorCode::RankLost);
  EXPECT_EQ(machine.attempt(), 1U);
}

TEST_F(Verdicts, are_waited_for_by_calls_that_come_again) {
  static_cast<void>(prepared());
  EXPECT_THAT(finish(0), IsEmpty());
  EXPECT_THAT(import(1), IsEmpty());
  ClipRequest clip;
  clip.key = {1, 0};
  EXPECT_THAT(machine.on_clip(0, clip, start, start), IsEmpty());
  EXPECT_THAT(machine.on_bucket_ready(0, 0, 0), IsEmpty());
  EXPECT_EQ(machine.ask_of(1)->kind, Ask::Kind::Finish);
  EXPECT_NE(find<Committed>(machine.on_verdict(std::nullopt)), nullptr);
  EXPECT_EQ(find<AttemptFailed>(finish(0)), nullptr) << "what came late is not of the next attempt";
}

TEST_F(Verdicts, are_given_on_imports_too) {
  EXPECT_THAT(import(0), IsEmpty());
  const Actions asked = import(1);
  ASSERT_THAT(asked, SizeIs(1));
  ASSERT_NE(find<PrepareImport>(asked), nullptr);
  EXPECT_THAT(import(1), IsEmpty()) << "prepared once";
  const Actions failed = machine.on_verdict(lost());
  ASSERT_NE(find<AttemptFailed>(failed), nullptr);
  static_cast<void>(import(0));
  EXPECT_EQ(find<PrepareImport>(import(1))->attempt, 1U);
  const Actions done = machine.on_verdict(std::nullopt);
  ASSERT_THAT(done, SizeIs(1));
  EXPECT_EQ(find<Imported>(done)->attempt, 1U);
}

TEST_F(Verdicts, that_an_attempt_failed_do_not_count_as_steps_that_multiplied) {
  for (int step = 0; step < 2; ++step) {
    static_cast<void>(prepared(true));
    static_cast<void>(machine.on_verdict(lost()));
  }
  static_cast<void>(finish(0));
  EXPECT_FALSE(find<LaunchReduce>(finish(1))->defer);
  machine.on_reduced(device::kHostLane, 2);
  static_cast<void>(machine.on_finished(device::kHostLane, 2, {}));
  static_cast<void>(machine.on_verdict(std::nullopt));
  for (int step = 0; step < 2; ++step) {
    static_cast<void>(prepared(true));
    static_cast<void>(machine.on_verdict(std::nullopt));
  }
  static_cast<void>(finish(0));
  EXPECT_TRUE(find<LaunchReduce>(finish(1))->defer) << "two steps that are done have";
}

TEST_F(Verdicts, are_not_given_on_what_was_not_prepared) {
  EXPECT_DEATH(static_cast<void>(machine.on_verdict(std::nullopt)), "a verdict is on an attempt that was prepared");
}

}  // namespace
}  // namespace gradsync::engine
