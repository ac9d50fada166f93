// The step machine of a node that has some ranks of the job: it goes by these alone, and says their numbers.

#include "engine/step/step_machine.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace gradsync::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Two buckets of a tensor each. Ranks 0 to 2 hold both, rank 3 holds the second alone, as its row 0.
std::shared_ptr<plan::Plan> plan_of_four_ranks() {
  auto plan = std::make_shared<plan::Plan>();
  plan->world_size = 4;
  plan->rows_are_tensors = false;
  plan->clip_groups.resize(1);
  for (std::uint32_t number = 0; number < 2; ++number) {
    plan::PlannedTensor& tensor = plan->tensors.emplace_back();
    tensor.declaration.name = "t" + std::to_string(number);
    tensor.bucket = number;
    plan->buckets.emplace_back().tensors = {number};
  }
  plan->layouts.resize(2);
  plan->layouts[0].tensors = {0, 1};
  plan->layouts[0].bucket_rows = {{0}, {1}};
  plan->layouts[1].tensors = {1};
  plan->layouts[1].bucket_rows = {{}, {0}};
  plan->layout_of = {0, 0, 0, 1};
  return plan;
}

/// Ranks 2 and 3, or 1 and 3, of four.
class LocalSeats : public ::testing::TestWithParam<std::int64_t> {
 protected:
  LocalSeats() {
    const std::vector<LaneShare> host{{}};
    EXPECT_THAT(machine.open(host), IsEmpty());
  }

  Actions finish(std::int64_t rank, std::int64_t step = 7, bool ready = true) {
    FinishRequest request;
    request.key = {1, machine.attempt()};
    request.step = step;
    request.ready_all = ready;
    request.micro_batch = rank;
    return machine.on_finish(rank, request, start, start + std::chrono::seconds(10));
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

  const TimePoint start{std::chrono::seconds(100)};
  const std::int64_t lower = GetParam();
  StepMachine machine{plan_of_four_ranks(), 1, LocalRanks::of(4, {lower, 3})};
};

TEST_P(LocalSeats, ask_for_all_that_is_launched) {
  EXPECT_EQ(find<LaunchReduce>(machine.on_bucket_ready(lower, 0, 1)), nullptr);
  const Actions first = machine.on_bucket_ready(lower, 0, 0);
  ASSERT_NE(find<LaunchReduce>(first), nullptr) << "rank 3 has nothing of bucket 0, ranks of other nodes do not count";
  EXPECT_EQ(find<LaunchReduce>(first)->bucket, 0U);
  EXPECT_EQ(find<LaunchReduce>(machine.on_bucket_ready(3, 0, 1))->bucket, 1U);
  EXPECT_THAT(finish(3), IsEmpty());
  EXPECT_TRUE(machine.waiting(3));
  EXPECT_FALSE(machine.all_waiting());
  EXPECT_THAT(machine.missing_ranks(), ElementsAre(lower));
  const Actions all = finish(lower);
  EXPECT_NE(find<LaunchFinish>(all), nullptr);
  EXPECT_TRUE(machine.all_waiting());
  EXPECT_EQ(machine.ask_of(lower)->step, 7);
}

TEST_P(LocalSeats, speak_of_their_own_rows) {
  EXPECT_THAT(machine.on_unused(3, 0, {0}), IsEmpty());
  static_cast<void>(finish(lower));
  const Actions actions = finish(3, 7, false);
  ASSERT_NE(find<LaunchReduce>(actions), nullptr);
  ASSERT_EQ(find<LaunchReduce>(actions)->unused.size(), 1U);
  EXPECT_EQ(find<LaunchReduce>(actions)->unused[0].tensor, 1U);
  EXPECT_EQ(find<LaunchReduce>(actions)->unused[0].rank, 3);
  EXPECT_NE(find<LaunchFinish>(actions), nullptr);
}

TEST_P(LocalSeats, are_named_by_rank_in_what_is_refused) {
  const Actions unready = finish(3, 7, false);
  ASSERT_NE(find<AnswerRank>(unready), nullptr);
  EXPECT_EQ(find<AnswerRank>(unready)->rank, 3);
  EXPECT_THAT(find<AnswerRank>(unready)->error.tensors, ElementsAre("t1"));
  EXPECT_THAT(machine.on_bucket_ready(3, 0, 0), IsEmpty());
  const Actions failed = finish(3);
  ASSERT_NE(find<TellFailed>(failed), nullptr);
  EXPECT_THAT(find<TellFailed>(failed)->error.message, HasSubstr("rank 3 declared no tensor of bucket 0"));
}

TEST_P(LocalSeats, that_disagree_are_named_by_rank) {
  static_cast<void>(finish(3, 4));
  const Actions failing = finish(lower, 5);
  ASSERT_NE(find<TellFailed>(failing), nullptr);
  EXPECT_EQ(find<AttemptFailed>(failing), nullptr) << "attempts have one number on all nodes";
  const Error error = find<TellFailed>(failing)->error;
  EXPECT_THAT(error.ranks, ElementsAre(3, lower));
  EXPECT_THAT(error.message, HasSubstr("rank 3 finishes step 4"));
  const Actions failed = machine.fail(error);
  ASSERT_NE(find<AttemptFailed>(failed), nullptr);
}

TEST_P(LocalSeats, that_agree_ask_the_other_nodes_with_the_earliest_deadline) {
  static_cast<void>(finish(lower));
  static_cast<void>(finish(3));
  machine.on_reduced(device::kHostLane, 0);
  machine.on_reduced(device::kHostLane, 0);
  const Actions measured = machine.on_finished(device::kHostLane, 0, {});
  ASSERT_NE(find<AskPeers>(measured), nullptr);
  EXPECT_EQ(find<AskPeers>(measured)->terms.deadline, start + std::chrono::seconds(10));
  EXPECT_TRUE(machine.asking());
  const Actions half = machine.on_time(start + std::chrono::seconds(5));
  ASSERT_NE(find<PeersOverdue>(half), nullptr);
  EXPECT_TRUE(find<PeersOverdue>(half)->half);
  const Actions over = machine.on_time(start + std::chrono::seconds(10));
  ASSERT_NE(find<PeersOverdue>(over), nullptr);
  EXPECT_FALSE(find<PeersOverdue>(over)->half);
  EXPECT_EQ(find<PeersOverdue>(over)->waited_s, 10);
  EXPECT_EQ(machine.failure(), std::nullopt) << "who is late is known to the nodes together";
  EXPECT_EQ(machine.next_deadline(), std::nullopt);
}

TEST_P(LocalSeats, that_are_missing_are_named_by_rank) {
  static_cast<void>(finish(lower));
  const Actions warning = machine.on_time(start + std::chrono::seconds(5));
  ASSERT_NE(find<HalfTime>(warning), nullptr);
  EXPECT_EQ(find<HalfTime>(warning)->waits_for, "rank 3");
  static_cast<void>(machine.on_time(start + std::chrono::seconds(10)));
  const std::optional<Error> error = machine.failure();
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, ErrorCode::StepTimeout);
  EXPECT_THAT(error->ranks, ElementsAre(3));
  EXPECT_THAT(error->tensors, ElementsAre("t1")) << "rank 3 has nothing of bucket 0";
}

TEST_P(LocalSeats, that_are_paused_are_waited_for) {
  Roster roster(4, 2);
  roster[lower].taken = roster[3].taken = true;
  roster[3].paused = true;
  static_cast<void>(finish(lower));
  machine.follow_pauses(start, roster);
  EXPECT_EQ(machine.next_deadline(), std::nullopt);
  roster[3].paused = false;
  machine.follow_pauses(start + std::chrono::seconds(60), roster);
  EXPECT_EQ(machine.next_deadline(), start + std::chrono::seconds(65)) << "half of ten seconds is still to come";
}

TEST_P(LocalSeats, that_brought_non_finite_values_are_known_by_rank) {
  static_cast<void>(finish(lower));
  static_cast<void>(finish(3));
  machine.on_reduced(device::kHostLane, 0);
  machine.on_reduced(device::kHostLane, 0);
  device::StepMath math;
  math.nonfinite = {{1, 2, {{0, 1}, {lower, 1}, {3, 1}}}};
  static_cast<void>(machine.on_finished(device::kHostLane, 0, {}));
  static_cast<void>(machine.on_agreed(math));
  const Actions scaled = machine.on_scaled(device::kHostLane, 0, 0);
  ASSERT_NE(find<Prepare>(scaled), nullptr);
  EXPECT_EQ(find<Prepare>(scaled)->micro_batches, (MicroBatches{{std::nullopt, lower, 3}})) << "of ranks that are here";
}

TEST_P(LocalSeats, write_what_the_nodes_found_before_they_vote) {
  static_cast<void>(finish(lower));
  const Actions launched = finish(3);
  ASSERT_NE(find<LaunchReduce>(launched), nullptr);
  EXPECT_FALSE(find<LaunchReduce>(launched)->defer);
  machine.on_reduced(device::kHostLane, 0);
  machine.on_reduced(device::kHostLane, 0);
  static_cast<void>(machine.on_finished(device::kHostLane, 0, {}));
  device::StepMath math;
  math.absent = {1};
  math.groups.resize(1);
  const Actions agreed = machine.on_agreed(math);
  EXPECT_EQ(find<Prepare>(agreed), nullptr);
  ASSERT_NE(find<LaunchOutcomes>(agreed), nullptr) << "also where nothing is multiplied";
  EXPECT_THAT(find<LaunchOutcomes>(agreed)->absent, ElementsAre(1U));
  EXPECT_EQ(find<LaunchOutcomes>(agreed)->outcomes.size(), 1U);
  EXPECT_FALSE(machine.voting());
  EXPECT_NE(find<Prepare>(machine.on_scaled(device::kHostLane, 0, 0)), nullptr);
  EXPECT_TRUE(machine.voting());
}

TEST_P(LocalSeats, that_wait_for_sums_of_other_nodes_have_them_named_when_time_is_over) {
  static_cast<void>(finish(lower));
  static_cast<void>(finish(3));
  const Actions half = machine.on_time(start + std::chrono::seconds(5));
  ASSERT_NE(find<PeersOverdue>(half), nullptr) << "all ranks here have asked, and the lane waits";
  EXPECT_TRUE(find<PeersOverdue>(half)->half);
  EXPECT_EQ(machine.waits_for(), "the lane: 0 of 2 buckets reduced with the other nodes");
  const Actions over = machine.on_time(start + std::chrono::seconds(10));
  ASSERT_NE(find<PeersOverdue>(over), nullptr);
  EXPECT_FALSE(find<PeersOverdue>(over)->half);
  EXPECT_FALSE(machine.failing());
}

TEST_P(LocalSeats, tell_of_a_failure_before_the_lane_is_quiet_and_are_answered_after_it) {
  static_cast<void>(finish(lower));
  static_cast<void>(finish(3));
  device::Failed report;
  report.message = "no memory";
  const Actions failing = machine.on_lane_failed(device::kHostLane, report);
  ASSERT_NE(find<TellFailed>(failing), nullptr) << "its connections close now, and others have to know why";
  EXPECT_NE(find<LaunchAbort>(failing), nullptr);
  EXPECT_THAT(machine.fail(find<TellFailed>(failing)->error), IsEmpty()) << "the epoch ends, and the lane still works";
  report.aborted = true;
  EXPECT_THAT(machine.on_lane_failed(device::kHostLane, report), IsEmpty());
  EXPECT_THAT(machine.on_lane_failed(device::kHostLane, report), IsEmpty());
  const Actions failed = machine.on_aborted(device::kHostLane, 0);
  ASSERT_NE(find<AttemptFailed>(failed), nullptr);
  EXPECT_THAT(find<AttemptFailed>(failed)->error.message, HasSubstr("no memory"));
}

TEST_P(LocalSeats, without_a_tensor_of_the_first_bucket_begin_with_the_second) {
  StepMachine other{plan_of_four_ranks(), 1, LocalRanks::of(4, {3})};
  EXPECT_THAT(other.open(std::vector<LaneShare>{{}}), IsEmpty()) << "no rank here has begun a step";
  const Actions launched = other.on_bucket_ready(3, 0, 1);
  ASSERT_EQ(launched.size(), 2U);
  EXPECT_EQ(std::get<LaunchReduce>(launched[0]).bucket, 0U);
  EXPECT_EQ(std::get<LaunchReduce>(launched[1]).bucket, 1U);
}

TEST_P(LocalSeats, are_not_those_of_other_nodes) {
  EXPECT_DEATH(static_cast<void>(finish(0)), "a rank of another node has no seat here");
}

INSTANTIATE_TEST_SUITE_P(OfFour, LocalSeats, ::testing::Values(2, 1));

}  // namespace
}  // namespace gradsync::engine
