// A job over nodes whose gradients lie on two GPUs of this one: each lane loads the plan as a site of its own, and a
// step waits for both.

#include "unit/engine/sites/node_of_two_gpus.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace gradsync::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

constexpr device::LaneId kFirstGpu = NodeOfTwoGpus::kFirst;
constexpr device::LaneId kSecondGpu = NodeOfTwoGpus::kSecond;

/// The plan is given to the lanes.
class JobSites : public testing::Test, protected NodeOfTwoGpus {
 protected:
  using Answers = std::vector<std::shared_ptr<Answer>>;

  JobSites() { prepare(); }

  void begin_steps(std::uint64_t epoch = kEpoch) {
    answer_all();
    tell(ConnectEpoch{epoch, ids()});
    answer_all();
    tell(BeginEpoch{epoch});
    ASSERT_THAT(keys, SizeIs(2));
  }

  Answers finish_both(const FinishRequest& request = Harness::ready_all()) {
    return {finish(2, request), finish(3, request)};
  }

  [[nodiscard]] std::size_t buckets() { return last<LocalsReady>().plan->buckets.size(); }

  /// The names of the communicators that the lane is told to connect.
  std::vector<std::string> names_to(device::LaneId id) {
    std::vector<std::string> names;
    for (const device::CommunicatorId& each : next<device::ConnectNodes>(id).communicators) {
      names.push_back(each.name);
    }
    return names;
  }

  /// The ranks that the lane hears of as ones without a gradient.
  std::vector<std::int64_t> unused_on(device::LaneId id) {
    std::vector<std::int64_t> ranks;
    for (const device::LaneCommand& command : lane(id).commands) {
      if (const auto* reduce = std::get_if<device::ReduceBucket>(&command)) {
        for (const device::UnusedTensor& one : reduce->unused) {
          ranks.push_back(one.rank);
        }
      }
    }
    return ranks;
  }
};

TEST(JobDevices, are_said_where_ranks_lie_on_two_lanes) {
  NodeOfTwoGpus apart;
  EXPECT_THAT(apart.last<LocalsChanged>().declared->devices, ElementsAre(0, 1));
  NodeOfTwoGpus crossed(kSecondGpu, kFirstGpu);
  EXPECT_THAT(crossed.last<LocalsChanged>().declared->devices, ElementsAre(0, 1)) << "by rank, and not by lane";
  NodeOfTwoGpus together(kSecondGpu, kSecondGpu);
  EXPECT_THAT(together.last<LocalsChanged>().declared->devices, IsEmpty());
}

TEST_F(JobSites, each_lane_gets_the_plan_with_the_buffers_of_its_own_ranks) {
  for (const auto& [id, rank, site] : {std::tuple(kFirstGpu, 2, 1u), {kSecondGpu, 3, 2u}}) {
    SCOPED_TRACE(id);
    ASSERT_EQ(lane(id).count<device::MapBuffer>(), 1u);
    EXPECT_EQ(next<device::MapBuffer>(id).buffer, buffers.at(rank));
    ASSERT_EQ(lane(id).count<device::LoadPlan>(), 1u);
    const device::LanePlan& layout = next<device::LoadPlan>(id).layout;
    std::vector<std::uint64_t> expected(4, 0);
    expected[static_cast<std::size_t>(rank)] = buffers.at(rank);
    EXPECT_EQ(layout.rank_buffers, expected);
    EXPECT_EQ(layout.nodes.node, site);
    EXPECT_THAT(layout.nodes.node_of_rank, ElementsAre(0, 0, 1, 2));
    ASSERT_TRUE(layout.nodes.communicators);
    EXPECT_EQ(layout.nodes.communicators->job, job);
    EXPECT_TRUE(layout.nodes.communicators->fresh) << "nothing is known of the epoch before";
  }
  EXPECT_THAT(host.commands, IsEmpty());
  EXPECT_EQ(next<device::LoadPlan>(kFirstGpu).plan, next<device::LoadPlan>(kSecondGpu).plan);
}

TEST_F(JobSites, is_ready_when_both_lanes_are_with_what_both_offer) {
  answer_lane(kFirstGpu);
  EXPECT_EQ(count<LocalsReady>(), 0u);
  answer_lane(kSecondGpu);
  ASSERT_EQ(count<LocalsReady>(), 1u);
  const auto& offered = last<LocalsReady>().communicators;
  ASSERT_TRUE(offered);
  EXPECT_EQ(offered->version, 22'809);
  const std::string all = plan::communicator_name({"dp"}, {0, 2, 3});
  EXPECT_THAT(
      offered->offers,
      UnorderedElementsAre(
          testing::AllOf(Field(&device::CommunicatorOffer::name, all), Field(&device::CommunicatorOffer::own, 1u)),
          testing::AllOf(Field(&device::CommunicatorOffer::name, all), Field(&device::CommunicatorOffer::own, 2u)),
          Field(&device::CommunicatorOffer::name, plan::communicator_name({"node"}, {0, 2})),
          Field(&device::CommunicatorOffer::name, plan::communicator_name({"node"}, {0, 3}))
      )
  );
}

TEST_F(JobSites, each_lane_gets_the_ids_of_its_own_communicators_and_both_are_waited_for) {
  answer_all();
  tell(ConnectEpoch{kEpoch, ids()});
  const std::string all = plan::communicator_name({"dp"}, {0, 2, 3});
  EXPECT_THAT(names_to(kFirstGpu), UnorderedElementsAre(all, plan::communicator_name({"node"}, {0, 2})));
  EXPECT_THAT(names_to(kSecondGpu), UnorderedElementsAre(all, plan::communicator_name({"node"}, {0, 3})));
  answer_lane(kSecondGpu);
  EXPECT_EQ(count<LocalsConnected>(), 0u);
  answer_lane(kFirstGpu);
  EXPECT_EQ(count<LocalsConnected>(), 1u);
}

TEST_F(JobSites, a_lane_that_cannot_load_the_plan_ends_the_epoch_on_both) {
  answer_lane(kSecondGpu);
  const device::PlanId plan = next<device::LoadPlan>(kFirstGpu).plan;
  first.commands.clear();
  device::Failed failed;
  failed.plan = plan;
  failed.message = "no room";
  failed.out_of_memory = true;
  engine.on_lane_report(kFirstGpu, failed);
  EXPECT_EQ(count<LocalsReady>(), 0u);
  ASSERT_EQ(count<LocalsLeft>(), 1u);
  EXPECT_EQ(last<LocalsLeft>().error.code, ErrorCode::InsufficientMemory);
  tell(EpochEnded{last<LocalsLeft>().error});
  for (const device::LaneId id : {kFirstGpu, kSecondGpu}) {
    EXPECT_EQ(lane(id).count<device::UnloadPlan>(), 1u) << id;
  }
  answer_all();
}

TEST_F(JobSites, a_library_that_a_lane_cannot_open_is_named_with_what_to_do) {
  device::Failed failed;
  failed.plan = next<device::LoadPlan>(kFirstGpu).plan;
  failed.message = "NCCL cannot be loaded: libnccl.so.2: no such file";
  failed.hint = "name it in [nccl] library";
  failed.unsupported = true;
  first.commands.pop_front();
  first.commands.pop_front();
  engine.on_lane_report(kFirstGpu, failed);
  ASSERT_EQ(count<LocalsLeft>(), 1u);
  const Error& error = last<LocalsLeft>().error;
  EXPECT_EQ(error.code, ErrorCode::UnsupportedPlacement);
  EXPECT_THAT(error.message, HasSubstr("libnccl.so.2: no such file"));
  EXPECT_EQ(error.hint, "name it in [nccl] library");
  tell(EpochEnded{error});
  answer_all();
  ASSERT_TRUE(refused.contains(2) && refused.contains(3));
  EXPECT_EQ(refused.at(3).code, ErrorCode::UnsupportedPlacement);
}

TEST_F(JobSites, a_plan_that_one_lane_takes_after_the_other_one_has_failed_is_forgotten) {
  const device::PlanId plan = next<device::LoadPlan>(kFirstGpu).plan;
  first.commands.clear();
  device::Failed failed;
  failed.plan = plan;
  failed.message = "no room";
  engine.on_lane_report(kFirstGpu, failed);
  tell(EpochEnded{last<LocalsLeft>().error});
  answer_all();
  EXPECT_EQ(count<LocalsReady>(), 0u);
  EXPECT_EQ(count<LocalsConnected>(), 0u);
}

TEST_F(JobSites, the_plan_of_a_lane_that_could_not_load_it_is_unloaded_there_as_well_and_the_next_one_works) {
  const device::PlanId plan = next<device::LoadPlan>(kFirstGpu).plan;
  device::Failed failed;
  failed.plan = plan;
  failed.message = "no room";
  failed.out_of_memory = true;
  first.commands.clear();
  engine.on_lane_report(kFirstGpu, failed);
  tell(EpochEnded{last<LocalsLeft>().error});
  ASSERT_EQ(first.count<device::UnloadPlan>(), 1u);
  first.commands.clear();
  failed.message = "plan is not loaded";
  failed.out_of_memory = false;
  engine.on_lane_report(kFirstGpu, failed);
  EXPECT_EQ(count<LocalsLeft>(), 1u) << "nobody waits for it any more";
  answer_lane(kSecondGpu);
  declare_all();
  prepare({0, 0, 1, 2}, kEpoch + 1);
  EXPECT_NE(next<device::LoadPlan>(kFirstGpu).plan, plan);
  begin_steps(kEpoch + 1);
  (void)finish_both();
  answer_all();
  EXPECT_EQ(count<LocalsAsked>(), 1u);
}

TEST_F(JobSites, what_a_lane_says_late_of_an_unloaded_plan_is_not_counted_for_the_next_one) {
  begin_steps();
  const Answers answers = finish_both();
  const auto late = std::get<device::ReduceBucket>(first.commands.front());
  tell(EpochEnded{make_error(ErrorCode::NodeLost, "node 'there' is lost")});
  answer_all();
  EXPECT_TRUE(answers[0]->error && answers[1]->error);
  declare_all();
  prepare({0, 0, 1, 2}, kEpoch + 1);
  begin_steps(kEpoch + 1);
  const double before = metrics.buckets_reduced.Value();
  (void)finish_both();
  ASSERT_NE(next<device::ReduceBucket>(kFirstGpu).plan, late.plan);
  engine.on_lane_report(kFirstGpu, device::Reduced{late.plan, late.tag, late.bucket, 9});
  EXPECT_EQ(metrics.buckets_reduced.Value(), before);
  EXPECT_EQ(engine.dump_of({1000, "job"})->attempts.back().reduced, 0u);
  answer_all();
  EXPECT_EQ(count<LocalsAsked>(), 1u);
}

TEST_F(JobSites, a_lane_that_is_lost_while_it_loads_ends_the_epoch_and_ranks_may_come_on_the_other_one) {
  answer_lane(kFirstGpu);
  second.lost = true;
  answer(kSecondGpu);
  ASSERT_EQ(count<LocalsLeft>(), 1u);
  EXPECT_THAT(last<LocalsLeft>().error.message, HasSubstr("signal 9"));
  EXPECT_EQ(first.count<device::UnloadPlan>(), 1u);
  tell(EpochEnded{last<LocalsLeft>().error});
  answer_all();
  declare_all(kFirstGpu);
  EXPECT_THAT(last<LocalsChanged>().declared->devices, IsEmpty()) << "both are on one GPU now";
}

TEST_F(JobSites, communicators_that_are_being_built_are_aborted_on_both_lanes_with_their_epoch) {
  answer_all();
  tell(ConnectEpoch{kEpoch, ids()});
  tell(EpochEnded{make_error(ErrorCode::NodeLost, "node 'there' is lost")});
  for (const device::LaneId id : {kFirstGpu, kSecondGpu}) {
    ASSERT_EQ(lane(id).count<device::UnloadPlan>(), 1u) << id;
    ASSERT_THAT(lane(id).aborted, SizeIs(1)) << id;
    EXPECT_EQ(lane(id).aborted[0].tag, 0u);
    const auto& commands = lane(id).commands;
    EXPECT_TRUE(std::holds_alternative<device::Abort>(commands[commands.size() - 2])) << "before it is unloaded";
  }
  answer_all();
  EXPECT_EQ(count<LocalsConnected>(), 0u);
}

TEST_F(JobSites, a_lane_that_still_loads_a_plan_is_told_to_forget_it_and_nothing_else) {
  answer_lane(kFirstGpu);
  tell(EpochEnded{make_error(ErrorCode::NodeLost, "node 'there' is lost")});
  EXPECT_THAT(lane(kFirstGpu).aborted, SizeIs(1)) << "it builds communicators when it is told to";
  EXPECT_THAT(lane(kSecondGpu).aborted, testing::IsEmpty());
  EXPECT_EQ(lane(kSecondGpu).count<device::UnloadPlan>(), 1u);
}

TEST_F(JobSites, communicators_that_have_done_steps_are_kept_when_the_plan_is_unloaded) {
  begin_steps();
  tell(EpochEnded{make_error(ErrorCode::NodeLost, "node 'there' is lost")});
  for (const device::LaneId id : {kFirstGpu, kSecondGpu}) {
    EXPECT_EQ(lane(id).count<device::UnloadPlan>(), 1u) << id;
    EXPECT_THAT(lane(id).aborted, IsEmpty()) << id;
  }
}

TEST_F(JobSites, a_step_asks_with_the_sums_of_both_sites_in_their_order) {
  begin_steps();
  const Answers answers = finish_both();
  for (const device::LaneId id : {kFirstGpu, kSecondGpu}) {
    EXPECT_EQ(lane(id).count<device::ReduceBucket>(), buckets()) << id;
    EXPECT_TRUE(next<device::FinishStep>(id).raw) << id;
  }
  answer_lane(kSecondGpu);
  EXPECT_EQ(count<LocalsAsked>(), 0u);
  answer_lane(kFirstGpu);
  ASSERT_EQ(count<LocalsAsked>(), 1u);
  const PeerAsk& ask = last<LocalsAsked>().ask;
  ASSERT_THAT(ask.sites, SizeIs(2));
  EXPECT_EQ(ask.sites[0].cells.counted_elements, kFirstGpu);
  EXPECT_EQ(ask.sites[1].cells.counted_elements, kSecondGpu);
  const Comparison& comparison = *last<LocalsReady>().comparison;
  EXPECT_EQ(misfit_of(*last<LocalsReady>().plan, comparison, {1, 2}, ask), std::nullopt);
  EXPECT_EQ(answers[0]->calls + answers[1]->calls, 0);
}

TEST_F(JobSites, a_step_is_voted_for_when_both_lanes_have_multiplied_and_done_by_its_verdict) {
  begin_steps();
  const Answers answers = finish_both();
  answer_all();
  decide();
  EXPECT_EQ(next<device::ScaleGradients>(kFirstGpu).outcomes.size(), 1u);
  EXPECT_EQ(next<device::ScaleGradients>(kSecondGpu).outcomes[0].norm, 5);
  answer_lane(kFirstGpu);
  EXPECT_EQ(count<Voted>(), 0u);
  answer_lane(kSecondGpu);
  ASSERT_EQ(count<Voted>(), 1u);
  tell(VerdictReached{last<Voted>().word, Verdict::Done});
  ASSERT_TRUE(answers[0]->report && answers[1]->report);
  EXPECT_EQ(answers[1]->report->norm, 5);
  const Answers next_step = finish_both();
  answer_all();
  EXPECT_EQ(count<LocalsAsked>(), 2u);
}

TEST_F(JobSites, a_norm_and_its_clip_ask_with_sites_and_without) {
  begin_steps();
  FinishRequest norm = Harness::ready_all();
  norm.kind = FinishKind::NormOnly;
  const Answers norms = finish_both(norm);
  answer_all();
  EXPECT_THAT(last<LocalsAsked>().ask.sites, SizeIs(2));
  decide();
  ASSERT_TRUE(norms[0]->report && norms[1]->report);
  const Answers clips{clip(2), clip(3)};
  EXPECT_THAT(last<LocalsAsked>().ask.sites, IsEmpty());
  decide();
  EXPECT_EQ(next<device::ScaleGradients>(kFirstGpu).outcomes[0].norm, 5);
  EXPECT_EQ(next<device::ScaleGradients>(kSecondGpu).outcomes[0].norm, 5);
  answer_all();
  tell(VerdictReached{last<Voted>().word, Verdict::Done});
  EXPECT_TRUE(clips[0]->report && clips[1]->report);
}

TEST_F(JobSites, what_a_rank_has_no_gradient_of_is_told_to_the_lane_of_its_site) {
  begin_steps();
  FinishRequest unused = Harness::ready_all();
  unused.unused = {0};
  (void)finish(2, unused);
  unused.unused = {0, 1};
  (void)finish(3, unused);
  EXPECT_THAT(unused_on(kFirstGpu), ElementsAre(2));
  EXPECT_THAT(unused_on(kSecondGpu), ElementsAre(3, 3));
}

/// Class 0 is of sites 0 and 1, and class 1 of sites 0 and 2, or the other way around.
TEST_F(JobSites, rows_are_read_on_the_site_that_is_in_the_class_and_said_with_its_number) {
  begin_steps();
  (void)finish_both();
  answer_all();
  const Comparison& comparison = *last<LocalsReady>().comparison;
  ASSERT_THAT(comparison.classes, SizeIs(2));
  const std::uint64_t word = last<LocalsAsked>().ask.word;
  for (std::uint32_t number = 0; number < 2; ++number) {
    SCOPED_TRACE(number);
    ASSERT_THAT(comparison.classes[number].nodes, SizeIs(2));
    const std::uint32_t site = comparison.classes[number].nodes[1];
    const device::LaneId reads = site == 1 ? kFirstGpu : kSecondGpu;
    tell(WantRows{{word, {number}, {}}});
    ASSERT_EQ(lane(reads).count<device::ReadRows>(), 1u);
    EXPECT_THAT(next<device::ReadRows>(reads).classes, ElementsAre(0)) << "the only one that the lane is in";
    EXPECT_EQ(lane(reads == kFirstGpu ? kSecondGpu : kFirstGpu).count<device::ReadRows>(), 0u);
    answer_all();
    EXPECT_EQ(count<LocalRows>(), number + 1);
    EXPECT_EQ(last<LocalRows>().rows.site, site - 1);
    EXPECT_THAT(last<LocalRows>().rows.box_hashes, ElementsAre(reads));
  }
  tell(WantRows{{word, {0, 1}, {}}});
  answer_all();
  EXPECT_EQ(count<LocalRows>(), 4u);
}

TEST_F(JobSites, a_bucket_is_counted_once_and_what_its_lanes_move_together) {
  begin_steps();
  (void)finish_both();
  answer_all();
  EXPECT_EQ(metrics.buckets_reduced.Value(), buckets());
  std::uint64_t bytes = 0;
  for (const plan::Bucket& bucket : last<LocalsReady>().plan->buckets) {
    bytes += bucket.size_bytes;
  }
  EXPECT_EQ(metrics.bucket_bytes.Value(), static_cast<double>(bytes));
  EXPECT_NEAR(metrics.reduce_seconds.Value(), 0.001 * 2 * static_cast<double>(buckets()), 1e-9);
  EXPECT_GT(metrics.wire_bytes.Value(), 0);
  double operations = 0;
  const std::vector<JobStatus> jobs = engine.status(1000);
  for (const CommunicatorStatus& one : jobs.front().communicators) {
    EXPECT_EQ(one.operations, one.operations_per_step) << one.name;
    operations += static_cast<double>(one.operations);
  }
  EXPECT_EQ(metrics.collectives.Value(), operations);
}

TEST_F(JobSites, the_time_of_reductions_is_that_of_the_lane_that_took_longest) {
  begin_steps();
  const Answers answers = finish_both();
  const auto reduce = std::get<device::ReduceBucket>(second.commands.front());
  second.commands.pop_front();
  engine.on_lane_report(kSecondGpu, device::Reduced{reduce.plan, reduce.tag, reduce.bucket, 0.25});
  answer_all();
  decide();
  answer_all();
  tell(VerdictReached{last<Voted>().word, Verdict::Done});
  ASSERT_TRUE(answers[0]->report);
  const double others = 0.001 * static_cast<double>(buckets() - 1);
  EXPECT_NEAR(answers[0]->report->timings.reduce_s, 0.25 + others, 1e-9);
}

TEST_F(JobSites, the_flight_recorder_counts_a_bucket_once_and_calls_it_reduced_when_both_lanes_have_it) {
  begin_steps();
  (void)finish_both();
  const auto attempt = [&] { return engine.dump_of({1000, "job"})->attempts.back(); };
  const auto reduced = [&] {
    const std::vector<BucketRecord> records = engine.dump_of({1000, "job"})->buckets;
    return std::ranges::count(records, BucketState::Reduced, &BucketRecord::state);
  };
  EXPECT_EQ(attempt().launched, buckets());
  EXPECT_EQ(attempt().reduced, 0u);
  answer_lane(kSecondGpu);
  EXPECT_EQ(attempt().reduced, 0u) << "the other lane still sums";
  EXPECT_EQ(reduced(), 0);
  answer_lane(kFirstGpu);
  EXPECT_EQ(attempt().launched, buckets());
  EXPECT_EQ(attempt().reduced, buckets());
  EXPECT_EQ(reduced(), static_cast<std::ptrdiff_t>(buckets()));
}

TEST_F(JobSites, a_lane_that_fails_in_a_step_stops_the_other_one_and_fails_the_ranks_of_both) {
  begin_steps();
  const Answers answers = finish_both();
  first.fail_reductions = true;
  answer(kFirstGpu);
  ASSERT_EQ(count<LocalsFailed>(), 1u) << "other nodes hear of it before the lanes are quiet";
  EXPECT_EQ(first.aborted.size(), 1u);
  EXPECT_EQ(second.aborted.size(), 1u);
  tell(EpochEnded{last<LocalsFailed>().error});
  EXPECT_EQ(answers[0]->calls + answers[1]->calls, 0);
  answer_all();
  for (const auto& answer : answers) {
    ASSERT_TRUE(answer->error);
    EXPECT_THAT(answer->error->message, HasSubstr("scripted failure"));
  }
  EXPECT_EQ(first.count<device::UnloadPlan>() + second.count<device::UnloadPlan>(), 0u) << "both are done with it";
}

TEST_F(JobSites, a_lane_that_is_lost_in_a_step_fails_the_ranks_of_both_sites) {
  begin_steps();
  const Answers answers = finish_both();
  answer_lane(kFirstGpu);
  second.lost = true;
  answer(kSecondGpu);
  ASSERT_EQ(count<LocalsFailed>(), 1u);
  EXPECT_THAT(last<LocalsFailed>().error.message, HasSubstr("signal 9"));
  EXPECT_THAT(first.aborted, IsEmpty()) << "it has done everything";
  tell(EpochEnded{last<LocalsFailed>().error});
  answer_all();
  EXPECT_TRUE(answers[0]->error && answers[1]->error);
}

TEST_F(JobSites, one_lane_that_waits_is_said_in_buckets_of_the_plan) {
  begin_steps();
  (void)finish_both();
  answer_lane(kSecondGpu);
  tell(WhoIsMissing{attempt_word({kEpoch, 0})});
  EXPECT_THAT(
      last<LocalsMissing>().missing.words, HasSubstr("the lane: 0 of " + std::to_string(buckets()) + " buckets reduced")
  );
  EXPECT_THAT(last<LocalsMissing>().missing.ranks, IsEmpty());
}

TEST(JobOneSite, two_ranks_on_one_gpu_load_one_plan_beside_a_node_of_two_sites) {
  NodeOfTwoGpus node(kFirstGpu, kFirstGpu);
  node.prepare({0, 1, 2, 2});
  EXPECT_EQ(node.second.count<device::LoadPlan>(), 0u);
  ASSERT_EQ(node.first.count<device::LoadPlan>(), 1u);
  const device::LanePlan& layout = node.next<device::LoadPlan>(kFirstGpu).layout;
  EXPECT_EQ(layout.nodes.node, 2u);
  EXPECT_THAT(layout.rank_buffers, ElementsAre(0, 0, node.buffers.at(2), node.buffers.at(3)));
  node.answer_all();
  node.tell(ConnectEpoch{NodeOfTwoGpus::kEpoch, node.ids()});
  node.answer_all();
  node.tell(BeginEpoch{NodeOfTwoGpus::kEpoch});
  (void)node.finish(2);
  (void)node.finish(3);
  node.answer_all();
  EXPECT_THAT(node.last<LocalsAsked>().ask.sites, SizeIs(1));
}

}  // namespace
}  // namespace gradsync::engine
