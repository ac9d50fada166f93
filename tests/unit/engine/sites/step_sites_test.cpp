// The step machine of a node of several whose gradients lie on two GPUs: each lane is a site, and does every bucket.

#include "engine/step/step_machine.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace gradsync::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr device::LaneId kFirst = 3;
constexpr device::LaneId kSecond = 4;

/// Two buckets of a tensor each, which all ranks hold.
std::shared_ptr<plan::Plan> plan_of_two_buckets() {
  auto plan = std::make_shared<plan::Plan>();
  plan->world_size = 4;
  plan->layouts.resize(1);
  plan->layout_of.assign(4, 0);
  for (std::uint32_t bucket = 0; bucket < 2; ++bucket) {
    plan::PlannedTensor tensor;
    tensor.declaration.name = "t" + std::to_string(bucket);
    tensor.bucket = bucket;
    plan->tensors.push_back(tensor);
    plan->buckets.emplace_back().tensors = {bucket};
    plan->layouts[0].tensors.push_back(bucket);
    plan->layouts[0].bucket_rows.push_back({bucket});
  }
  plan->clip_groups.resize(1);
  return plan;
}

template <typename T>
std::vector<T> all_of_type(const Actions& actions) {
  std::vector<T> found;
  for (const Action& action : actions) {
    if (const T* one = std::get_if<T>(&action)) {
      found.push_back(*one);
    }
  }
  return found;
}

template <typename T>
std::vector<device::LaneId> lanes_told(const Actions& actions) {
  std::vector<device::LaneId> lanes;
  for (const T& one : all_of_type<T>(actions)) {
    lanes.push_back(one.lane);
  }
  return lanes;
}

/// Ranks 2 and 3 of four are here, one on each lane; the sites of this node are 1 and 2.
class StepSites : public testing::Test {
 protected:
  StepSites() { EXPECT_THAT(machine.open({{kFirst, {0, 1}, 1}, {kSecond, {0, 1}, 2}}), IsEmpty()); }

  [[nodiscard]] FinishRequest request(FinishKind kind = FinishKind::Finish) const {
    FinishRequest finish;
    finish.key = {1, machine.attempt()};
    finish.ready_all = true;
    finish.kind = kind;
    return finish;
  }

  /// Both ranks ask; what the second leads to.
  Actions ask(FinishKind kind = FinishKind::Finish) {
    (void)machine.on_finish(2, request(kind), start, deadline);
    return machine.on_finish(3, request(kind), start, deadline);
  }

  Actions clip(bool abandon = false) {
    ClipRequest request;
    request.key = {1, machine.attempt()};
    request.abandon = abandon;
    (void)machine.on_clip(2, request, start, deadline);
    return machine.on_clip(3, request, start, deadline);
  }

  void reduce(device::LaneId lane, int buckets = 2) {
    for (int bucket = 0; bucket < buckets; ++bucket) {
      machine.on_reduced(lane, machine.attempt());
    }
  }

  Actions finished(device::LaneId lane) { return machine.on_finished(lane, machine.attempt(), {}); }

  Actions scaled(device::LaneId lane, double clip_s = 0) { return machine.on_scaled(lane, machine.attempt(), clip_s); }

  /// Both lanes have reduced everything and answered the finish: the other nodes are asked.
  Actions measure(FinishKind kind = FinishKind::Finish) {
    (void)ask(kind);
    reduce(kSecond);
    (void)finished(kSecond);
    reduce(kFirst);
    return finished(kFirst);
  }

  static device::ReadRows wanted(std::vector<std::uint32_t> classes) {
    device::ReadRows rows;
    rows.classes = std::move(classes);
    return rows;
  }

  static device::Failed failure(std::uint64_t tag, const std::string& message, bool aborted = false) {
    device::Failed report;
    report.tag = tag;
    report.message = message;
    report.aborted = aborted;
    return report;
  }

  static device::StepMath math_with(std::uint32_t absent) {
    device::StepMath math;
    math.absent = {absent};
    math.groups.resize(1);
    return math;
  }

  const TimePoint start{std::chrono::seconds(100)};
  const TimePoint deadline{std::chrono::seconds(110)};
  StepMachine machine{plan_of_two_buckets(), 1, LocalRanks::of(4, {2, 3})};
};

TEST_F(StepSites, every_bucket_is_reduced_and_every_finish_done_by_both_lanes) {
  EXPECT_THAT(machine.on_bucket_ready(2, 0, 0), IsEmpty());
  EXPECT_THAT(lanes_told<LaunchReduce>(machine.on_bucket_ready(3, 0, 0)), ElementsAre(kFirst, kSecond));
  EXPECT_EQ(machine.launched(), 1);
  const Actions actions = ask();
  const std::vector<LaunchReduce> launched = all_of_type<LaunchReduce>(actions);
  ASSERT_THAT(launched, SizeIs(2));
  EXPECT_EQ(launched[0].bucket, 1u);
  EXPECT_EQ(launched[1].bucket, 1u);
  EXPECT_FALSE(launched[0].defer || launched[1].defer);
  EXPECT_THAT(lanes_told<LaunchFinish>(actions), ElementsAre(kFirst, kSecond));
  EXPECT_THAT(all_of_type<LaunchMeasure>(actions), IsEmpty()) << "the plan is not cut";
}

TEST_F(StepSites, both_lanes_hear_of_what_is_unused) {
  EXPECT_THAT(machine.on_unused(2, 0, {1}), IsEmpty());
  const std::vector<LaunchReduce> launched = all_of_type<LaunchReduce>(ask());
  ASSERT_THAT(launched, SizeIs(4));
  for (const LaunchReduce& launch : launched) {
    EXPECT_THAT(launch.unused, SizeIs(launch.bucket == 1 ? 1 : 0)) << "the job leaves each lane its own";
  }
}

TEST_F(StepSites, other_nodes_are_asked_when_both_lanes_have_finished) {
  (void)ask();
  reduce(kSecond);
  EXPECT_THAT(finished(kSecond), IsEmpty());
  EXPECT_FALSE(machine.asking());
  reduce(kFirst);
  EXPECT_THAT(all_of_type<AskPeers>(finished(kFirst)), SizeIs(1));
  EXPECT_TRUE(machine.asking());
  EXPECT_FALSE(machine.busy());
}

TEST_F(StepSites, both_lanes_multiply_before_the_step_is_prepared) {
  (void)measure();
  const Actions outcomes = machine.on_agreed(math_with(1));
  ASSERT_THAT(lanes_told<LaunchOutcomes>(outcomes), ElementsAre(kFirst, kSecond));
  for (const LaunchOutcomes& launch : all_of_type<LaunchOutcomes>(outcomes)) {
    EXPECT_THAT(launch.buckets, IsEmpty()) << "all of them";
    EXPECT_THAT(launch.absent, ElementsAre(1));
    EXPECT_THAT(launch.outcomes, SizeIs(1));
  }
  EXPECT_THAT(scaled(kSecond, 0.5), IsEmpty());
  const std::vector<Prepare> prepared = all_of_type<Prepare>(scaled(kFirst, 0.25));
  ASSERT_THAT(prepared, SizeIs(1));
  EXPECT_EQ(prepared[0].math.clip_s, 0.5) << "of the lane that took longer";
  EXPECT_TRUE(machine.voting());
  EXPECT_THAT(all_of_type<Committed>(machine.on_verdict({})), SizeIs(1));
  EXPECT_EQ(machine.attempt(), 1u);
  EXPECT_THAT(all_of_type<AskPeers>(measure()), SizeIs(1)) << "the next step counts from the beginning";
}

TEST_F(StepSites, rows_are_read_by_the_lanes_that_have_some) {
  (void)measure();
  EXPECT_THAT(lanes_told<LaunchRead>(machine.on_rows_wanted({wanted({}), wanted({0})})), ElementsAre(kSecond));
  EXPECT_TRUE(machine.on_rows_read(kSecond, 0));
  EXPECT_THAT(lanes_told<LaunchRead>(machine.on_rows_wanted({wanted({0}), wanted({0})})), ElementsAre(kFirst, kSecond));
  EXPECT_TRUE(machine.on_rows_read(kSecond, 0));
  EXPECT_TRUE(machine.busy());
  EXPECT_TRUE(machine.on_rows_read(kFirst, 0));
  EXPECT_FALSE(machine.busy());
  EXPECT_THAT(machine.on_rows_wanted({wanted({}), wanted({})}), IsEmpty());
}

TEST_F(StepSites, a_read_that_is_late_does_not_hold_up_what_is_multiplied) {
  (void)measure();
  (void)machine.on_rows_wanted({wanted({0}), wanted({})});
  (void)machine.on_agreed(math_with(0));
  EXPECT_THAT(scaled(kSecond), IsEmpty());
  EXPECT_FALSE(machine.on_rows_read(kFirst, 0)) << "nobody asks for them any more";
  EXPECT_THAT(all_of_type<Prepare>(scaled(kFirst)), SizeIs(1));
}

TEST_F(StepSites, rows_that_are_wanted_while_a_lane_measures_are_not_read) {
  (void)ask();
  reduce(kFirst);
  (void)finished(kFirst);
  EXPECT_THAT(machine.on_rows_wanted({wanted({0}), wanted({0})}), IsEmpty());
}

TEST_F(StepSites, a_norm_and_its_clip_are_done_by_both_lanes) {
  (void)measure(FinishKind::NormOnly);
  EXPECT_THAT(all_of_type<NormKnown>(machine.on_agreed(math_with(1))), SizeIs(1));
  EXPECT_THAT(all_of_type<AskPeers>(clip()), SizeIs(1));
  const Actions scale = machine.on_agreed({});
  ASSERT_THAT(lanes_told<LaunchScale>(scale), ElementsAre(kFirst, kSecond));
  for (const LaunchScale& launch : all_of_type<LaunchScale>(scale)) {
    EXPECT_THAT(launch.absent, ElementsAre(1)) << "as the norm found";
    EXPECT_FALSE(launch.abandon);
  }
  EXPECT_THAT(scaled(kFirst), IsEmpty());
  EXPECT_THAT(all_of_type<Prepare>(scaled(kSecond)), SizeIs(1));
}

TEST_F(StepSites, a_step_that_is_abandoned_is_so_on_both_lanes) {
  (void)measure(FinishKind::NormOnly);
  (void)machine.on_agreed(math_with(1));
  (void)clip(true);
  const std::vector<LaunchScale> scale = all_of_type<LaunchScale>(machine.on_agreed({}));
  ASSERT_THAT(scale, SizeIs(2));
  EXPECT_TRUE(scale[0].abandon && scale[1].abandon);
}

TEST_F(StepSites, an_import_asks_without_the_lanes) {
  ImportRequest import;
  import.key = {1, 0};
  EXPECT_THAT(machine.on_import(2, import, start, deadline), IsEmpty());
  EXPECT_THAT(all_of_type<AskPeers>(machine.on_import(3, import, start, deadline)), SizeIs(1));
  EXPECT_THAT(all_of_type<PrepareImport>(machine.on_agreed({})), SizeIs(1));
  EXPECT_THAT(all_of_type<Imported>(machine.on_verdict({})), SizeIs(1));
}

TEST_F(StepSites, a_lane_that_fails_stops_the_other_one_and_other_nodes_hear_of_it_at_once) {
  (void)ask();
  reduce(kSecond, 1);
  const Actions failing = machine.on_lane_failed(kFirst, failure(0, "out of order"));
  EXPECT_THAT(lanes_told<LaunchAbort>(failing), ElementsAre(kFirst, kSecond)) << "both still owe reports";
  EXPECT_THAT(all_of_type<TellFailed>(failing), SizeIs(1));
  EXPECT_THAT(machine.fail(make_error(ErrorCode::StepFailed, "as all nodes say")), IsEmpty()) << "lanes are not quiet";
  for (const device::LaneId lane : {kFirst, kSecond}) {
    for (int owed = 0; owed < 2; ++owed) {
      EXPECT_THAT(machine.on_lane_failed(lane, failure(0, "aborted", true)), IsEmpty());
    }
  }
  EXPECT_THAT(machine.on_aborted(kSecond, 0), IsEmpty());
  const std::vector<AttemptFailed> failed = all_of_type<AttemptFailed>(machine.on_aborted(kFirst, 0));
  ASSERT_THAT(failed, SizeIs(1));
  EXPECT_EQ(failed[0].error.message, "as all nodes say");
}

TEST_F(StepSites, a_lane_that_fails_when_the_other_one_has_finished_leaves_that_alone) {
  (void)ask();
  reduce(kSecond);
  (void)finished(kSecond);
  reduce(kFirst);
  const Actions failing = machine.on_lane_failed(kFirst, failure(0, "the worker ended"));
  EXPECT_THAT(all_of_type<LaunchAbort>(failing), IsEmpty()) << "neither owes anything";
  ASSERT_THAT(all_of_type<TellFailed>(failing), SizeIs(1));
  EXPECT_THAT(all_of_type<TellFailed>(failing)[0].error.message, HasSubstr("the worker ended"));
  EXPECT_THAT(all_of_type<AttemptFailed>(machine.fail(make_error(ErrorCode::StepFailed, "all"))), SizeIs(1));
  EXPECT_THAT(all_of_type<AskPeers>(measure()), SizeIs(1)) << "the finish of the lane before does not count";
}

TEST_F(StepSites, a_lane_that_fails_while_the_other_one_multiplies_stops_it) {
  (void)measure();
  (void)machine.on_agreed(math_with(1));
  const Actions failing = machine.on_lane_failed(kSecond, failure(0, "the worker ended"));
  EXPECT_THAT(lanes_told<LaunchAbort>(failing), ElementsAre(kFirst));
  EXPECT_THAT(scaled(kFirst), IsEmpty()) << "nothing is prepared any more";
  EXPECT_THAT(machine.on_aborted(kFirst, 0), IsEmpty());
  EXPECT_THAT(all_of_type<AttemptFailed>(machine.fail(make_error(ErrorCode::StepFailed, "all"))), SizeIs(1));
}

TEST_F(StepSites, reports_of_an_older_attempt_do_not_count) {
  (void)ask();
  reduce(kFirst);
  (void)machine.fail(make_error(ErrorCode::StepTimeout, "late"));
  for (int owed = 0; owed < 2; ++owed) {
    (void)machine.on_lane_failed(kSecond, failure(0, "aborted", true));
  }
  (void)machine.on_lane_failed(kSecond, failure(0, "aborted", true));
  (void)machine.on_lane_failed(kFirst, failure(0, "aborted", true));
  (void)machine.on_aborted(kFirst, 0);
  EXPECT_THAT(all_of_type<AttemptFailed>(machine.on_aborted(kSecond, 0)), SizeIs(1));
  ASSERT_EQ(machine.attempt(), 1u);
  (void)ask();
  machine.on_reduced(kSecond, 0);
  EXPECT_THAT(machine.on_finished(kSecond, 0, {}), IsEmpty());
  EXPECT_THAT(machine.on_scaled(kFirst, 0, 0), IsEmpty());
  EXPECT_FALSE(machine.on_rows_read(kFirst, 0));
  EXPECT_THAT(machine.on_lane_failed(kFirst, failure(0, "late")), IsEmpty());
  reduce(kFirst);
  EXPECT_THAT(finished(kFirst), IsEmpty());
  reduce(kSecond);
  EXPECT_THAT(all_of_type<AskPeers>(finished(kSecond)), SizeIs(1));
}

TEST_F(StepSites, no_bucket_is_deferred_however_often_all_was_multiplied) {
  for (int step = 0; step < 4; ++step) {
    for (const LaunchReduce& launch : all_of_type<LaunchReduce>(ask())) {
      EXPECT_FALSE(launch.defer) << "in step " << step;
    }
    for (const device::LaneId lane : {kFirst, kSecond}) {
      reduce(lane);
      (void)finished(lane);
    }
    device::StepMath math = math_with(1);
    math.groups[0].multiply = true;
    math.groups[0].multiplier = 0.5F;
    (void)machine.on_agreed(math);
    (void)scaled(kFirst);
    (void)scaled(kSecond);
    (void)machine.on_verdict({});
  }
}

TEST_F(StepSites, what_lanes_wait_for_is_said_in_buckets_of_the_plan) {
  (void)ask();
  EXPECT_THAT(machine.waits_for(), HasSubstr("0 of 2 buckets reduced with the other nodes"));
  reduce(kFirst);
  EXPECT_THAT(machine.waits_for(), HasSubstr("0 of 2 buckets reduced")) << "the other lane has none";
  reduce(kSecond, 1);
  EXPECT_THAT(machine.waits_for(), HasSubstr("1 of 2 buckets reduced"));
  reduce(kSecond, 1);
  EXPECT_THAT(machine.waits_for(), HasSubstr("2 of 2 buckets reduced"));
}

TEST_F(StepSites, what_is_waited_for_on_one_node_names_no_other) {
  machine = StepMachine(plan_of_two_buckets(), 1, LocalRanks::of(4, {0, 1, 2, 3}, true));
  (void)machine.open({{kFirst, {0, 1}, 0}, {kSecond, {0, 1}, 1}});
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    (void)machine.on_finish(rank, request(), start, deadline);
  }
  EXPECT_EQ(machine.waits_for(), "the lane: 0 of 2 buckets reduced on all GPUs");
  for (const device::LaneId lane : {kFirst, kSecond}) {
    reduce(lane);
    (void)finished(lane);
  }
  EXPECT_EQ(machine.waits_for(), "the coordinator of this node");
  (void)machine.fail_here(make_error(ErrorCode::StepFailed, "a row cannot be right"));
  EXPECT_EQ(machine.waits_for(), "the coordinator to hear of: a row cannot be right");
}

TEST_F(StepSites, the_ranks_of_other_nodes_are_waited_for_when_all_here_have_asked) {
  (void)measure();
  EXPECT_EQ(machine.waits_for(), "the ranks of other nodes");
}

}  // namespace
}  // namespace gradsync::engine
