#include "engine/step/step_machine.hpp"

#include "engine/plan/lane_plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gradsync::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// `buckets` buckets of one tensor each, on `ranks` ranks that all hold all of them.
std::shared_ptr<plan::Plan> plan_of(std::size_t buckets, std::int64_t ranks) {
  auto plan = std::make_shared<plan::Plan>();
  plan->world_size = ranks;
  plan->layouts.resize(1);
  plan->layout_of.assign(static_cast<std::size_t>(ranks), 0);
  for (std::uint32_t i = 0; i < buckets; ++i) {
    plan::PlannedTensor tensor;
    tensor.declaration.name = "t" + std::to_string(i);
    tensor.bucket = i;
    plan->tensors.push_back(tensor);
    plan::Bucket bucket;
    bucket.tensors = {i};
    plan->buckets.push_back(bucket);
    plan->layouts[0].tensors.push_back(i);
    plan->layouts[0].bucket_rows.push_back({i});
  }
  plan->clip_groups.resize(1);
  return plan;
}

const std::vector<LaneShare> kOnHost{{}};

std::vector<std::uint32_t> launched(const Actions& actions) {
  std::vector<std::uint32_t> buckets;
  for (const Action& action : actions) {
    if (const auto* launch = std::get_if<LaunchReduce>(&action)) {
      buckets.push_back(launch->bucket);
    }
  }
  return buckets;
}

template <typename T>
const T* find(const Actions& actions) {
  for (const Action& action : actions) {
    if (const T* found = std::get_if<T>(&action)) {
      return found;
    }
  }
  return nullptr;
}

class StepMachineTest : public ::testing::Test {
 protected:
  FinishRequest request(std::int64_t step, std::uint64_t attempt = 0) const {
    FinishRequest finish;
    finish.key = {1, attempt};
    finish.step = step;
    finish.ready_all = true;
    return finish;
  }

  Actions finish(StepMachine& machine, std::int64_t rank, const FinishRequest& ask) const {
    return machine.on_finish(rank, ask, start, start + std::chrono::seconds(10));
  }

  /// What was prepared is done on all nodes.
  static Actions done(StepMachine& machine, const Actions& prepared) {
    EXPECT_NE(find<Prepare>(prepared), nullptr);
    return machine.on_verdict(std::nullopt);
  }

  const TimePoint start{std::chrono::seconds(100)};
};

TEST_F(StepMachineTest, holds_a_bucket_until_every_rank_is_ready) {
  StepMachine machine(plan_of(3, 2), 1);
  EXPECT_THAT(machine.open(kOnHost), IsEmpty());
  EXPECT_THAT(machine.on_bucket_ready(0, 0, 0), IsEmpty());
  EXPECT_THAT(launched(machine.on_bucket_ready(1, 0, 0)), ElementsAre(0));
}

TEST_F(StepMachineTest, launches_strictly_in_plan_order) {
  StepMachine machine(plan_of(3, 2), 1);
  EXPECT_THAT(machine.open(kOnHost), IsEmpty());
  EXPECT_THAT(machine.on_bucket_ready(0, 0, 2), IsEmpty());
  EXPECT_THAT(machine.on_bucket_ready(1, 0, 2), IsEmpty());
  EXPECT_THAT(machine.on_bucket_ready(0, 0, 1), IsEmpty());
  EXPECT_THAT(machine.on_bucket_ready(1, 0, 1), IsEmpty());
  EXPECT_THAT(machine.on_bucket_ready(0, 0, 0), IsEmpty());
  EXPECT_THAT(launched(machine.on_bucket_ready(1, 0, 0)), ElementsAre(0, 1, 2));
}

TEST_F(StepMachineTest, finishes_behind_the_last_bucket_once_the_last_rank_asks) {
  StepMachine machine(plan_of(2, 2), 1);
  EXPECT_THAT(machine.open(kOnHost), IsEmpty());
  EXPECT_EQ(find<LaunchFinish>(finish(machine, 0, request(7))), nullptr);
  const Actions second = finish(machine, 1, request(7));
  EXPECT_THAT(launched(second), ElementsAre(0, 1));
  ASSERT_EQ(second.size(), 3u);
  EXPECT_TRUE(std::holds_alternative<LaunchFinish>(second.back())) << "the lane takes commands in order";
  machine.on_reduced(device::kHostLane, 0);
  machine.on_reduced(device::kHostLane, 0);
  EXPECT_TRUE(machine.busy()) << "the norm";
  const Actions prepared = machine.on_finished(device::kHostLane, 0, {});
  ASSERT_NE(find<Prepare>(prepared), nullptr);
  EXPECT_EQ(find<Prepare>(prepared)->attempt, 0u);
  EXPECT_EQ(machine.attempt(), 0u) << "it may still fail elsewhere";
  const Actions committed = machine.on_verdict(std::nullopt);
  ASSERT_NE(find<Committed>(committed), nullptr);
  EXPECT_EQ(find<Committed>(committed)->attempt, 0u);
  EXPECT_EQ(machine.attempt(), 1u);
  EXPECT_FALSE(machine.busy());
}

TEST_F(StepMachineTest, launches_the_norm_once_whatever_comes_late) {
  StepMachine machine(plan_of(2, 2), 1);
  EXPECT_THAT(machine.open(kOnHost), IsEmpty());
  static_cast<void>(finish(machine, 0, request(7)));
  EXPECT_NE(find<LaunchFinish>(finish(machine, 1, request(7))), nullptr);
  EXPECT_THAT(finish(machine, 0, request(7)), IsEmpty());
  EXPECT_THAT(machine.open(kOnHost), IsEmpty());
  EXPECT_THAT(machine.on_bucket_ready(0, 0, 1), IsEmpty());
  EXPECT_THAT(machine.on_unused(0, 0, {1}), IsEmpty());
  machine.on_reduced(device::kHostLane, 0);
  machine.on_reduced(device::kHostLane, 0);
  EXPECT_NE(find<Committed>(done(machine, machine.on_finished(device::kHostLane, 0, {}))), nullptr);
  EXPECT_FALSE(machine.begun()) << "what came late is not of the next attempt";
  EXPECT_THAT(finish(machine, 0, request(8, 1)), IsEmpty()) << "and no error of it either";
}

TEST_F(StepMachineTest, carries_unused_tensors_to_their_bucket) {
  StepMachine machine(plan_of(2, 2), 1);
  EXPECT_THAT(machine.open(kOnHost), IsEmpty());
  EXPECT_THAT(machine.on_unused(1, 0, {1}), IsEmpty());
  FinishRequest ask = request(0);
  static_cast<void>(finish(machine, 0, ask));
  const Actions actions = finish(machine, 1, ask);
  ASSERT_EQ(launched(actions).size(), 2u);
  EXPECT_THAT(std::get<LaunchReduce>(actions[0]).unused, IsEmpty());
  ASSERT_EQ(std::get<LaunchReduce>(actions[1]).unused.size(), 1u);
  EXPECT_EQ(std::get<LaunchReduce>(actions[1]).unused[0].tensor, 1u);
  EXPECT_EQ(std::get<LaunchReduce>(actions[1]).unused[0].rank, 1);
}

/// Rank 0 holds tensor 0 alone, as its row 0; rank 1 holds tensor 1.
std::shared_ptr<plan::Plan> plan_of_two_stages() {
  auto plan = plan_of(2, 2);
  plan->layouts.resize(2);
  plan->layouts[0].tensors = {0};
  plan->layouts[0].bucket_rows = {{0}, {}};
  plan->layouts[1].tensors = {1};
  plan->layouts[1].bucket_rows = {{}, {0}};
  plan->layout_of = {0, 1};
  plan->rows_are_tensors = false;
  return plan;
}

TEST_F(StepMachineTest, a_bucket_waits_for_its_holders_alone) {
  StepMachine machine(plan_of_two_stages(), 1);
  EXPECT_THAT(machine.open(kOnHost), IsEmpty());
  EXPECT_FALSE(machine.begun()) << "what a rank need not say, it has not said";
  EXPECT_THAT(launched(machine.on_bucket_ready(0, 0, 0)), ElementsAre(0));
  EXPECT_THAT(launched(machine.on_bucket_ready(1, 0, 1)), ElementsAre(1));
}

TEST_F(StepMachineTest, nothing_is_launched_before_the_lane_has_the_plan) {
  StepMachine machine(plan_of_two_stages(), 1);
  EXPECT_THAT(machine.on_bucket_ready(0, 0, 0), IsEmpty()) << "a survivor may be ready before the epoch is there";
  EXPECT_THAT(finish(machine, 1, request(0)), IsEmpty());
  EXPECT_THAT(launched(machine.open(kOnHost)), ElementsAre(0, 1));
}

TEST_F(StepMachineTest, a_plan_that_is_loaded_after_all_have_asked_gets_buckets_and_norm_at_once) {
  StepMachine machine(plan_of_two_stages(), 1);
  EXPECT_THAT(finish(machine, 0, request(0)), IsEmpty());
  EXPECT_THAT(finish(machine, 1, request(0)), IsEmpty());
  const Actions actions = machine.open(kOnHost);
  EXPECT_THAT(launched(actions), ElementsAre(0, 1));
  ASSERT_EQ(actions.size(), 3u);
  EXPECT_TRUE(std::holds_alternative<LaunchFinish>(actions.back()));
}

TEST_F(StepMachineTest, an_abort_goes_to_the_lanes_that_owe_a_report_and_waits_for_them) {
  StepMachine machine(plan_of_two_stages(), 1);
  EXPECT_THAT(machine.open({{7, {0}}, {5, {1}}}), IsEmpty());
  const Actions first = machine.on_bucket_ready(0, 0, 0);
  const Actions second = machine.on_bucket_ready(1, 0, 1);
  EXPECT_EQ(find<LaunchReduce>(first)->lane, 7u);
  EXPECT_EQ(find<LaunchReduce>(second)->lane, 5u);
  machine.on_reduced(7, 0);
  EXPECT_TRUE(machine.busy());
  const Actions failing = machine.fail(make_error(ErrorCode::RankLost, "lost"));
  ASSERT_EQ(failing.size(), 1u) << "lane 7 owes nothing";
  EXPECT_EQ(find<LaunchAbort>(failing)->lane, 5u);
  EXPECT_DEATH(machine.on_reduced(7, 0), "a lane reports once on each command that it was given");
  machine.on_reduced(5, 0);
  EXPECT_TRUE(machine.busy()) << "the abort is outstanding";
  EXPECT_NE(find<AttemptFailed>(machine.on_aborted(5, 0)), nullptr);
  EXPECT_FALSE(machine.busy());
}

/// Two buckets, which two ranks hold, on a lane each.
class SharedPlan : public StepMachineTest {
 protected:
  SharedPlan() { EXPECT_THAT(machine.open({{7, {0}}, {5, {1}}}), IsEmpty()); }

  /// All ranks have asked, and both buckets are reduced.
  Actions asked(const FinishRequest& ask) {
    EXPECT_THAT(finish(machine, 0, ask), IsEmpty());
    Actions actions = finish(machine, 1, ask);
    machine.on_reduced(7, ask.key.attempt);
    machine.on_reduced(5, ask.key.attempt);
    return actions;
  }

  static device::Measured measured(std::uint64_t tag) { return {0, tag, {}, {}}; }

  static device::StepMath decided(double multiplier) {
    device::StepMath math;
    math.groups.resize(1);
    math.groups[0].multiply = multiplier != 1;
    math.groups[0].multiplier = multiplier;
    return math;
  }

  StepMachine machine{plan_of(2, 2), 1};
};

TEST_F(SharedPlan, is_measured_by_each_lane_and_decided_once) {
  FinishRequest scaled = request(3);
  scaled.scale = 8;
  const Actions actions = asked(scaled);
  ASSERT_EQ(actions.size(), 4u);
  EXPECT_THAT(launched(actions), ElementsAre(0, 1));
  EXPECT_EQ(std::get<LaunchReduce>(actions[0]).lane, 7u) << "what reduces a bucket measures it";
  EXPECT_EQ(std::get<LaunchReduce>(actions[1]).lane, 5u);
  EXPECT_EQ(std::get<LaunchMeasure>(actions[2]).lane, 7u);
  EXPECT_THAT(std::get<LaunchMeasure>(actions[2]).buckets, ElementsAre(0));
  EXPECT_EQ(std::get<LaunchMeasure>(actions[3]).lane, 5u);
  EXPECT_THAT(std::get<LaunchMeasure>(actions[3]).buckets, ElementsAre(1));
  EXPECT_THAT(machine.on_measured(5, measured(0)), IsEmpty());
  const Actions both = machine.on_measured(7, measured(0));
  ASSERT_NE(find<Decide>(both), nullptr);
  EXPECT_EQ(find<Decide>(both)->parts.size(), 2u);
  EXPECT_EQ(find<Decide>(both)->scale, 8) << "by the terms of the ask";
  EXPECT_NE(find<Committed>(done(machine, machine.on_decided(decided(1)))), nullptr) << "nothing is multiplied";
  EXPECT_EQ(machine.attempt(), 1u);
}

TEST_F(SharedPlan, is_done_when_every_lane_has_multiplied) {
  static_cast<void>(asked(request(3)));
  static_cast<void>(machine.on_measured(7, measured(0)));
  static_cast<void>(machine.on_measured(5, measured(0)));
  const Actions actions = machine.on_decided(decided(0.5));
  ASSERT_EQ(actions.size(), 2u);
  EXPECT_EQ(std::get<LaunchOutcomes>(actions[0]).lane, 7u);
  EXPECT_THAT(std::get<LaunchOutcomes>(actions[0]).buckets, ElementsAre(0));
  EXPECT_EQ(std::get<LaunchOutcomes>(actions[1]).outcomes[0].multiplier, 0.5);
  EXPECT_THAT(machine.on_scaled(5, 0, 0.25), IsEmpty()) << "lane 7 still multiplies";
  const Actions both = machine.on_scaled(7, 0, 0.125);
  ASSERT_NE(find<Prepare>(both), nullptr);
  EXPECT_EQ(find<Prepare>(both)->math.clip_s, 0.25) << "the longest";
  EXPECT_EQ(find<Prepare>(both)->math.groups[0].multiplier, 0.5);
}

TEST_F(SharedPlan, in_halves_is_scaled_on_every_lane) {
  FinishRequest ask = request(3);
  ask.kind = FinishKind::NormOnly;
  static_cast<void>(asked(ask));
  static_cast<void>(machine.on_measured(7, measured(0)));
  static_cast<void>(machine.on_measured(5, measured(0)));
  EXPECT_NE(find<NormKnown>(machine.on_decided(decided(0.5))), nullptr) << "clip.apply decides again";
  ClipRequest clip;
  clip.key = {1, 0};
  clip.step = 3;
  EXPECT_THAT(machine.on_clip(0, clip, start, start + std::chrono::seconds(10)), IsEmpty());
  const Actions actions = machine.on_clip(1, clip, start, start + std::chrono::seconds(10));
  ASSERT_EQ(actions.size(), 2u);
  EXPECT_THAT(std::get<LaunchScale>(actions[0]).buckets, ElementsAre(0));
  EXPECT_THAT(std::get<LaunchScale>(actions[1]).buckets, ElementsAre(1));
  EXPECT_THAT(machine.on_scaled(7, 0, 0), IsEmpty());
  EXPECT_NE(find<Committed>(done(machine, machine.on_scaled(5, 0, 0))), nullptr);
}

TEST_F(SharedPlan, fails_as_a_whole_where_one_lane_has_multiplied_and_another_cannot) {
  static_cast<void>(asked(request(3)));
  static_cast<void>(machine.on_measured(7, measured(0)));
  static_cast<void>(machine.on_measured(5, measured(0)));
  static_cast<void>(machine.on_decided(decided(0.5)));
  EXPECT_THAT(machine.on_scaled(5, 0, 0), IsEmpty());
  device::Failed lost;
  lost.message = "ended by signal 9";
  const Actions failing = machine.on_lane_failed(7, lost);
  ASSERT_NE(find<AttemptFailed>(failing), nullptr);
  EXPECT_EQ(machine.attempt(), 1u);
}

TEST_F(SharedPlan, what_one_lane_measured_is_not_of_the_next_attempt) {
  static_cast<void>(asked(request(3)));
  EXPECT_THAT(machine.on_measured(7, measured(0)), IsEmpty());
  device::Failed failed;
  failed.message = "no memory";
  EXPECT_NE(find<AttemptFailed>(machine.on_lane_failed(5, failed)), nullptr);
  static_cast<void>(asked(request(4, 1)));
  EXPECT_THAT(machine.on_measured(5, measured(1)), IsEmpty()) << "lane 7 has not";
  EXPECT_NE(find<Decide>(machine.on_measured(7, measured(1))), nullptr);
}

TEST_F(StepMachineTest, a_bucket_that_nobody_holds_is_before_the_norm_too) {
  auto plan = plan_of_two_stages();
  plan->layouts[1].tensors.clear();
  plan->layouts[1].bucket_rows = {{}, {}};
  StepMachine machine(plan, 1);
  EXPECT_THAT(machine.open(kOnHost), IsEmpty());
  EXPECT_THAT(launched(finish(machine, 0, request(0))), ElementsAre(0, 1));
  EXPECT_NE(find<LaunchFinish>(finish(machine, 1, request(0))), nullptr);
}

TEST_F(StepMachineTest, ranks_speak_of_their_own_rows) {
  StepMachine machine(plan_of_two_stages(), 1);
  EXPECT_THAT(machine.open(kOnHost), IsEmpty());
  EXPECT_THAT(machine.on_unused(1, 0, {0}), IsEmpty());
  EXPECT_THAT(launched(finish(machine, 0, request(0))), ElementsAre(0));
  const Actions actions = finish(machine, 1, request(0));
  ASSERT_EQ(launched(actions), std::vector<std::uint32_t>{1});
  const auto& unused = find<LaunchReduce>(actions)->unused;
  ASSERT_EQ(unused.size(), 1u);
  EXPECT_EQ(unused[0].tensor, 1u);
  EXPECT_EQ(unused[0].rank, 1);
}

TEST_F(StepMachineTest, what_a_rank_did_not_declare_is_refused) {
  StepMachine machine(plan_of_two_stages(), 1);
  EXPECT_THAT(machine.open(kOnHost), IsEmpty());
  EXPECT_THAT(machine.on_bucket_ready(0, 0, 1), IsEmpty());
  const Actions actions = finish(machine, 0, request(0));
  ASSERT_NE(find<AttemptFailed>(actions), nullptr);
  EXPECT_THAT(find<AttemptFailed>(actions)->error.message, HasSubstr("rank 0 declared no tensor of bucket 1"));
  FinishRequest ask = request(0, 1);
  ask.unused = {1};
  const Actions refused = finish(machine, 0, ask);
  ASSERT_NE(find<AnswerRank>(refused), nullptr);
  EXPECT_THAT(find<AnswerRank>(refused)->error.message, HasSubstr("tensor 1 does not exist: rank 0 declared 1"));
}

TEST_F(StepMachineTest, names_tensors_that_are_neither_ready_nor_unused_and_stays_open) {
  StepMachine machine(plan_of(2, 1), 1);
  EXPECT_THAT(machine.open(kOnHost), IsEmpty());
  FinishRequest ask = request(0);
  ask.ready_all = false;
  ask.ready = {0};
  const Actions actions = finish(machine, 0, ask);
  const auto* answer = find<AnswerRank>(actions);
  ASSERT_NE(answer, nullptr);
  EXPECT_EQ(answer->error.code, ErrorCode::NotReady);
  EXPECT_THAT(answer->error.tensors, ElementsAre("t1"));
  ask.unused = {1};
  const Actions again = finish(machine, 0, ask);
  EXPECT_THAT(launched(again), ElementsAre(1));
}

TEST_F(StepMachineTest, fails_for_all_when_ranks_finish_different_steps) {
  StepMachine machine(plan_of(1, 2), 1);
  EXPECT_THAT(machine.open(kOnHost), IsEmpty());
  static_cast<void>(finish(machine, 0, request(4)));
  const Actions actions = finish(machine, 1, request(5));
  const auto* failed = find<AttemptFailed>(actions);
  ASSERT_NE(failed, nullptr);
  EXPECT_EQ(failed->error.code, ErrorCode::StepMismatch);
  EXPECT_THAT(failed->error.ranks, ElementsAre(0, 1));
  EXPECT_EQ(failed->error.attempt, 1u);
}

TEST_F(StepMachineTest, aborts_what_runs_and_fails_only_when_the_lane_is_quiet) {
  StepMachine machine(plan_of(2, 2), 1);
  EXPECT_THAT(machine.open(kOnHost), IsEmpty());
  static_cast<void>(finish(machine, 0, request(0)));
  static_cast<void>(finish(machine, 1, request(0)));
  const Actions failing = machine.fail(make_error(ErrorCode::RankLost, "rank 1 died"));
  ASSERT_NE(find<LaunchAbort>(failing), nullptr);
  EXPECT_EQ(find<AttemptFailed>(failing), nullptr);
  device::Failed aborted;
  aborted.tag = 0;
  aborted.aborted = true;
  for (int command = 0; command < 3; ++command) {  // two buckets and the norm behind them
    EXPECT_THAT(machine.on_lane_failed(device::kHostLane, aborted), IsEmpty());
  }
  EXPECT_NE(find<AttemptFailed>(machine.on_aborted(device::kHostLane, 0)), nullptr);
  EXPECT_EQ(machine.attempt(), 1u);
}

TEST_F(StepMachineTest, keeps_the_first_error) {
  StepMachine machine(plan_of(1, 2), 1);
  EXPECT_THAT(machine.open(kOnHost), IsEmpty());
  static_cast<void>(finish(machine, 0, request(0)));
  static_cast<void>(finish(machine, 1, request(0)));
  static_cast<void>(machine.fail(make_error(ErrorCode::RankLost, "first")));
  EXPECT_THAT(machine.fail(make_error(ErrorCode::StepTimeout, "second")), IsEmpty());
  device::Failed report;
  static_cast<void>(machine.on_lane_failed(device::kHostLane, report));
  static_cast<void>(machine.on_lane_failed(device::kHostLane, report));
  const Actions settled = machine.on_aborted(device::kHostLane, 0);
  ASSERT_NE(find<AttemptFailed>(settled), nullptr);
  EXPECT_EQ(find<AttemptFailed>(settled)->error.message, "first");
}

TEST_F(StepMachineTest, a_bucket_that_fails_fails_the_step_once_and_the_norm_behind_it_says_nothing) {
  for (const bool refused : {true, false}) {
    StepMachine machine(plan_of(2, 1), 1);
    EXPECT_THAT(machine.open(kOnHost), IsEmpty());
    EXPECT_NE(find<LaunchFinish>(finish(machine, 0, request(0))), nullptr);
    machine.on_reduced(device::kHostLane, 0);
    device::Failed report;
    report.message = "bucket 1 failed";
    EXPECT_NE(find<LaunchAbort>(machine.on_lane_failed(device::kHostLane, report)), nullptr);
    report.message = "bucket 1 does not hold the sums of attempt 0";
    EXPECT_THAT(
        refused ? machine.on_lane_failed(device::kHostLane, report) : machine.on_finished(device::kHostLane, 0, {}),
        IsEmpty()
    );
    EXPECT_EQ(machine.attempt(), 0u) << "the Abort is yet to be answered";
    const Actions settled = machine.on_aborted(device::kHostLane, 0);
    ASSERT_EQ(settled.size(), 1u);
    ASSERT_NE(find<AttemptFailed>(settled), nullptr);
    EXPECT_THAT(find<AttemptFailed>(settled)->error.message, HasSubstr("bucket 1 failed"));
    EXPECT_FALSE(machine.busy());
    EXPECT_EQ(launched(finish(machine, 0, request(0, 1))).size(), 2u) << "the next attempt has all of it again";
  }
}

TEST_F(StepMachineTest, a_deadline_over_buckets_and_norm_waits_for_all_that_is_queued) {
  StepMachine machine(plan_of(2, 2), 1);
  EXPECT_THAT(machine.open(kOnHost), IsEmpty());
  static_cast<void>(finish(machine, 0, request(3)));
  static_cast<void>(finish(machine, 1, request(3)));
  machine.on_reduced(device::kHostLane, 0);
  EXPECT_NE(find<LaunchAbort>(machine.on_time(start + std::chrono::seconds(10))), nullptr);
  EXPECT_EQ(machine.failure()->code, ErrorCode::StepTimeout);
  EXPECT_THAT(machine.failure()->message, HasSubstr("the lane did not finish within 10.0 s: 1 of 2 buckets reduced"));
  EXPECT_THAT(machine.failure()->ranks, IsEmpty());
  machine.on_reduced(device::kHostLane, 0);  // it ran and came to its end
  device::Failed aborted;
  aborted.aborted = true;
  EXPECT_THAT(machine.on_lane_failed(device::kHostLane, aborted), IsEmpty());
  const Actions settled = machine.on_aborted(device::kHostLane, 0);
  ASSERT_NE(find<AttemptFailed>(settled), nullptr);
  EXPECT_EQ(find<AttemptFailed>(settled)->error.step, 3);
}

TEST_F(StepMachineTest, ignores_reports_of_an_attempt_that_ended) {
  StepMachine machine(plan_of(1, 1), 1);
  EXPECT_THAT(machine.open(kOnHost), IsEmpty());
  static_cast<void>(finish(machine, 0, request(0)));
  machine.on_reduced(device::kHostLane, 0);
  static_cast<void>(done(machine, machine.on_finished(device::kHostLane, 0, {})));
  machine.on_reduced(device::kHostLane, 0);
  EXPECT_FALSE(machine.busy());
}

TEST_F(StepMachineTest, a_bucket_reported_twice_fails_the_step_by_name) {
  StepMachine machine(plan_of(2, 1), 1);
  EXPECT_THAT(machine.open(kOnHost), IsEmpty());
  EXPECT_THAT(launched(machine.on_bucket_ready(0, 0, 0)), ElementsAre(0));
  machine.on_reduced(device::kHostLane, 0);
  static_cast<void>(machine.on_bucket_ready(0, 0, 0));
  const Actions actions = finish(machine, 0, request(0));
  const auto* failed = find<AttemptFailed>(actions);
  ASSERT_NE(failed, nullptr);
  EXPECT_EQ(failed->error.code, ErrorCode::DuplicateReady);
  EXPECT_EQ(failed->error.bucket, 0);
}

TEST_F(StepMachineTest, findings_of_non_finite_values_know_the_micro_batch_that_completed_the_bucket) {
  StepMachine machine(plan_of(3, 2), 1);
  EXPECT_THAT(machine.open(kOnHost), IsEmpty());
  device::StepMath math;
  math.nonfinite = {{0, 2, {{0, 1}, {1, 1}}}, {2, 1, {{1, 1}}}, {1, 1, {}}};
  for (std::uint64_t attempt = 0; attempt < 2; ++attempt) {
    if (attempt == 0) {
      static_cast<void>(machine.on_bucket_ready(0, attempt, 0, 2));
      static_cast<void>(machine.on_bucket_ready(1, attempt, 0));
    }
    FinishRequest ask = request(0, attempt);
    static_cast<void>(finish(machine, 0, ask));
    ask.micro_batch = 3;
    static_cast<void>(finish(machine, 1, ask));
    for (int bucket = 0; bucket < 3; ++bucket) {
      machine.on_reduced(device::kHostLane, attempt);
    }
    const Actions actions = machine.on_finished(device::kHostLane, attempt, math);
    ASSERT_NE(find<Prepare>(actions), nullptr);
    const MicroBatches expected =
        attempt == 0 ? MicroBatches{{2, std::nullopt}, {3}, {}} : MicroBatches{{std::nullopt, 3}, {3}, {}};
    EXPECT_EQ(find<Prepare>(actions)->micro_batches, expected) << "nothing is left of the attempt before";
    static_cast<void>(machine.on_verdict(std::nullopt));
  }
}

TEST_F(StepMachineTest, both_halves_of_a_step_know_the_micro_batches_and_a_table_has_none) {
  for (const bool stats : {false, true}) {
    const std::shared_ptr<plan::Plan> plan = plan_of(1, 1);
    plan->options.data_path = stats ? plan::DataPath::Stats : plan::DataPath::Arena;
    StepMachine machine(plan, 1);
    EXPECT_THAT(machine.open(kOnHost), IsEmpty());
    FinishRequest ask = request(0);
    ask.kind = FinishKind::NormOnly;
    ask.micro_batch = 5;
    static_cast<void>(finish(machine, 0, ask));
    machine.on_reduced(device::kHostLane, 0);
    device::StepMath math;
    math.nonfinite = {{0, 1, {{0, 1}}}};
    const MicroBatches expected = stats ? MicroBatches{} : MicroBatches{{5}};
    const Actions measured = machine.on_finished(device::kHostLane, 0, math);
    ASSERT_NE(find<NormKnown>(measured), nullptr);
    EXPECT_EQ(find<NormKnown>(measured)->micro_batches, expected);
    ClipRequest clip;
    clip.key = {1, 0};
    static_cast<void>(machine.on_clip(0, clip, start, start));
    const Actions scaled = machine.on_scaled(device::kHostLane, 0, 0);
    ASSERT_NE(find<Prepare>(scaled), nullptr);
    EXPECT_EQ(find<Prepare>(scaled)->micro_batches, expected);
  }
}

TEST_F(StepMachineTest, an_unused_mark_after_its_bucket_left_fails_the_step) {
  StepMachine machine(plan_of(1, 1), 1);
  EXPECT_THAT(machine.open(kOnHost), IsEmpty());
  static_cast<void>(machine.on_bucket_ready(0, 0, 0));
  static_cast<void>(machine.on_unused(0, 0, {0}));
  device::Failed aborted;
  aborted.aborted = true;
  EXPECT_NE(find<LaunchAbort>(finish(machine, 0, request(0))), nullptr);
  static_cast<void>(machine.on_lane_failed(device::kHostLane, aborted));
  const Actions actions = machine.on_aborted(device::kHostLane, 0);
  EXPECT_EQ(find<AttemptFailed>(actions)->error.tensor, "t0");
}

TEST_F(StepMachineTest, the_deadline_names_missing_ranks_and_tensors) {
  StepMachine machine(plan_of(2, 3), 1);
  EXPECT_THAT(machine.open(kOnHost), IsEmpty());
  static_cast<void>(finish(machine, 0, request(3)));
  static_cast<void>(machine.on_bucket_ready(2, 0, 0));
  EXPECT_EQ(machine.next_deadline(), start + std::chrono::seconds(5));
  const Actions warning = machine.on_time(start + std::chrono::seconds(5));
  ASSERT_EQ(warning.size(), 1u);
  EXPECT_EQ(std::get<HalfTime>(warning.front()).waits_for, "ranks 1, 2");
  EXPECT_EQ(machine.next_deadline(), start + std::chrono::seconds(10));
  EXPECT_THAT(machine.on_time(start + std::chrono::seconds(9)), IsEmpty()) << "warned once";
  const Actions actions = machine.on_time(start + std::chrono::seconds(10));
  const auto* failed = find<AttemptFailed>(actions);
  ASSERT_NE(failed, nullptr);
  EXPECT_EQ(failed->error.code, ErrorCode::StepTimeout);
  EXPECT_THAT(failed->error.ranks, ElementsAre(1, 2));
  EXPECT_THAT(failed->error.tensors, ElementsAre("t0", "t1"));
  EXPECT_DOUBLE_EQ(*failed->error.waited_s, 10.0);
}

TEST_F(StepMachineTest, a_notification_of_another_attempt_fails_the_step_and_tells_the_next_one) {
  StepMachine machine(plan_of(1, 1), 1);
  EXPECT_THAT(machine.open(kOnHost), IsEmpty());
  static_cast<void>(machine.on_bucket_ready(0, 3, 0));
  const Actions actions = finish(machine, 0, request(0));
  const auto* failed = find<AttemptFailed>(actions);
  ASSERT_NE(failed, nullptr);
  EXPECT_EQ(failed->error.code, ErrorCode::StaleAttempt);
  EXPECT_EQ(failed->error.attempt, 1u) << "attempt 0 is over";
}

TEST_F(StepMachineTest, a_norm_leaves_the_step_open_for_clip) {
  StepMachine machine(plan_of(1, 2), 1);
  EXPECT_THAT(machine.open(kOnHost), IsEmpty());
  FinishRequest ask = request(0);
  ask.kind = FinishKind::NormOnly;
  static_cast<void>(finish(machine, 0, ask));
  const Actions asked = finish(machine, 1, ask);
  ASSERT_NE(find<LaunchFinish>(asked), nullptr);
  EXPECT_TRUE(find<LaunchFinish>(asked)->norm_only);
  machine.on_reduced(device::kHostLane, 0);
  EXPECT_NE(find<NormKnown>(machine.on_finished(device::kHostLane, 0, {})), nullptr);
  EXPECT_EQ(machine.attempt(), 0u);
  ClipRequest clip;
  clip.key = {1, 0};
  EXPECT_THAT(machine.on_clip(0, clip, start, start), IsEmpty());
  EXPECT_NE(find<LaunchScale>(machine.on_clip(1, clip, start, start)), nullptr);
  EXPECT_NE(find<Committed>(done(machine, machine.on_scaled(device::kHostLane, 0, 0.5))), nullptr);
  EXPECT_EQ(machine.attempt(), 1u);
}

TEST_F(StepMachineTest, a_clip_before_the_queued_norm_is_known_is_refused) {
  StepMachine machine(plan_of(1, 1), 1);
  EXPECT_THAT(machine.open(kOnHost), IsEmpty());
  FinishRequest ask = request(0);
  ask.kind = FinishKind::NormOnly;
  EXPECT_NE(find<LaunchFinish>(finish(machine, 0, ask)), nullptr);
  machine.on_reduced(device::kHostLane, 0);
  ClipRequest clip;
  clip.key = {1, 0};
  const Actions early = machine.on_clip(0, clip, start, start);
  ASSERT_NE(find<AnswerRank>(early), nullptr);
  EXPECT_EQ(find<AnswerRank>(early)->error.code, ErrorCode::StepMismatch);
  EXPECT_NE(find<NormKnown>(machine.on_finished(device::kHostLane, 0, {})), nullptr);
  EXPECT_NE(find<LaunchScale>(machine.on_clip(0, clip, start, start)), nullptr);
}

TEST_F(StepMachineTest, clip_without_a_norm_is_refused) {
  StepMachine machine(plan_of(1, 1), 1);
  EXPECT_THAT(machine.open(kOnHost), IsEmpty());
  ClipRequest clip;
  clip.key = {1, 0};
  const Actions actions = machine.on_clip(0, clip, start, start);
  EXPECT_EQ(find<AnswerRank>(actions)->error.code, ErrorCode::StepMismatch);
}

TEST_F(StepMachineTest, a_finish_of_another_attempt_is_stale_and_told_the_right_one) {
  StepMachine machine(plan_of(1, 1), 1);
  EXPECT_THAT(machine.open(kOnHost), IsEmpty());
  const Actions actions = finish(machine, 0, request(0, 5));
  const auto* answer = find<AnswerRank>(actions);
  ASSERT_NE(answer, nullptr);
  EXPECT_EQ(answer->error.code, ErrorCode::StaleAttempt);
  EXPECT_EQ(answer->error.epoch, 1u);
  EXPECT_EQ(answer->error.attempt, 0u);
}

}  // namespace
}  // namespace gradsync::engine
