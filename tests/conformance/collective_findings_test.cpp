// Lanes whose sums travel by collectives: any job, what they find in its gradients, and the plans that they refuse.

#include "conformance/collective_world.hpp"
#include "unit/device/random_job.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace gradsync::device {
namespace {

using testing::HasSubstr;

class CollectiveLanesOfRandomJobs : public testing::TestWithParam<CollectiveDeviceKind> {};

INSTANTIATE_TEST_SUITE_P(
    Devices,
    CollectiveLanesOfRandomJobs,
    testing::ValuesIn(collective_kinds()),
    [](const auto& one) { return name_of(one.param); }
);

/// Random jobs: any shapes, cuts, groups, copies, formats, norms and unused tensors, over two to five nodes.
TEST_P(CollectiveLanesOfRandomJobs, leave_in_every_byte_what_one_lane_leaves) {
  int travelled = 0;
  for (std::uint64_t seed = 1; travelled < 8; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomJob random(seed);
    ShardedJob job = random.make();
    const auto ranks = static_cast<std::size_t>(job.layout.world_size);
    if (ranks < 3) {
      continue;
    }
    job.load();
    NodeOfRank placed(ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      placed[rank] = static_cast<plan::TransferNode>(rank % std::min<std::size_t>(ranks, 2 + seed % 4));
    }
    const std::vector<plan::BucketTransfer> transfers = transfers_of(job.layout, placed, {});
    if (std::ranges::all_of(transfers, [](const plan::BucketTransfer& each) { return each.blocks.empty(); })) {
      continue;
    }
    NcclWorkers workers("", GetParam());
    NodeWorld world(job, placed, collective_options(workers));
    ++travelled;
    for (Tag tag = 1; tag <= 2; ++tag) {
      job.fill(random.random());
      world.max_norm = tag == 1 ? std::optional<double>() : 0.75;
      expect_collective_step(world, tag, tag == 2 ? UnusedSet() : random.unused(job));
    }
    if (HasFailure()) {
      return;
    }
  }
}

/// Values that are not finite, in a sum that the norm counts and in a copy that it does not.
TEST_P(CollectiveLanesOfRandomJobs, find_what_lanes_over_connections_find) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  ShardedJob job(4);
  job.add_bucket(plan::DType::Float32, 4.0);
  job.add(replicated({20'000}, {{0, 1, 2, 3}}));
  job.add(replicated({500}, {{0, 2}, {1, 3}}));
  job.add(scattered({4, 30}, 0, Index(4, 1), {0, 1, 2, 3}));
  job.load();
  std::mt19937_64 random(1);
  job.fill(random);
  job.set(1, 0, 5, kNaN);
  job.set(3, 0, 19'999, std::numeric_limits<double>::infinity());
  job.set(3, 1, 7, kNaN);
  const NodeOfRank placed = {0, 0, 1, 1};
  NcclWorkers workers("", GetParam());
  NodeWorld collectives(job, placed, collective_options(workers));
  NodeWorld connections(job, placed);
  const NodesSaid said = collectives.measure(1);
  const NodesSaid expected = connections.measure(1);
  ASSERT_TRUE(said.failed.empty() && expected.failed.empty());
  EXPECT_TRUE(std::isnan(said.norm) && std::isnan(expected.norm));
  EXPECT_FALSE(expected.nonfinite.empty());
  EXPECT_EQ(said.nonfinite, expected.nonfinite);
  EXPECT_EQ(said.nonfinite_of_ranks, expected.nonfinite_of_ranks);
  EXPECT_GT(expected.cells.whole.nonfinite, expected.nonfinite.at(0)) << "the copy has some, too";
  EXPECT_EQ(said.cells.whole.nonfinite, expected.cells.whole.nonfinite);
  EXPECT_EQ(said.cells.whole.nan, expected.cells.whole.nan);
  EXPECT_EQ(said.divergence, expected.divergence);
  EXPECT_EQ(said.missing, expected.missing);
  EXPECT_EQ(said.cells.counted_elements, expected.cells.counted_elements);
}

/// A plan over nodes of which nothing travels needs no communicator, and is compared all the same.
TEST_P(CollectiveLanesOfRandomJobs, leave_what_lanes_over_connections_leave_where_nothing_travels) {
  ShardedJob job(4);
  job.add_bucket(plan::DType::BFloat16, 2.0);
  job.add(replicated({5'000}, {{0, 1}, {2, 3}}));
  job.load();
  std::mt19937_64 random(3);
  job.fill(random);
  NcclWorkers workers("", GetParam());
  NodeWorld world(job, {0, 0, 1, 1}, collective_options(workers));
  NodeWorld connections(job, {0, 0, 1, 1});
  world.max_norm = connections.max_norm = 0.5;
  const NodesSaid said = world.step(1);
  const NodesSaid expected = connections.step(1);
  ASSERT_TRUE(said.failed.empty()) << said.failed.front().message;
  EXPECT_EQ(said.norm, expected.norm);
  EXPECT_EQ(said.divergence, expected.divergence);
  EXPECT_TRUE(world.memory() == connections.memory());
}

TEST(CollectiveLane, without_nccl_refuses_a_plan_that_needs_it) {
  const ShardedJob job = collective_job(2);
  LaneRun run(LaneKind::Host);
  run.arenas.emplace_back(job.arenas[0].size());
  run.ask(MapBuffer{1, run.arenas[0].descriptor(), run.arenas[0].size_bytes()});
  LanePlan layout = layout_of_node(job.layout, {0, 1}, 0);
  layout.nodes.communicators = communicators_of(layout.nodes, "dp");
  EXPECT_THAT(std::get<Failed>(run.ask(LoadPlan{kPlanOfNodes, std::move(layout)})).hint, HasSubstr("--nccl"));
}

TEST(CollectiveLane, refuses_communicators_that_its_transfers_do_not_need) {
  const ShardedJob job = collective_job(3);
  const NodeOfRank placed = {0, 1, 2};
  NcclWorkers workers("");
  ReportBox box;
  const auto lane = workers.maker()(0, [&](LaneReport report) { box.put(std::move(report)); });
  const ClientArena arena(job.arenas[0].size());
  lane->submit(MapBuffer{1, arena.descriptor(), arena.size_bytes()});
  (void)box.take();
  const auto refusal = [&](auto change, const plan::TransferOptions& options = {}) {
    LanePlan layout = layout_of_node(job.layout, placed, 0, options);
    layout.nodes.communicators = communicators_of(layout.nodes, "dp");
    change(layout.nodes.communicators->needed);
    lane->submit(LoadPlan{kPlanOfNodes, std::move(layout)});
    const LaneReport report = box.take();
    const auto* failed = std::get_if<Failed>(&report);
    return failed == nullptr ? std::string("taken") : failed->message;
  };
  using Needed = std::vector<LaneCommunicator>;
  EXPECT_THAT(refusal([](Needed& needed) { needed.clear(); }), HasSubstr("nodes [0, 1, 2] sum something"));
  EXPECT_THAT(refusal([](Needed& needed) { needed[0].spec.own = 1; }), HasSubstr("node 0 is not there"));
  EXPECT_THAT(refusal([](Needed& needed) { needed[0].spec.own = 3; }), HasSubstr("node 0 is not there"));
  EXPECT_THAT(refusal([](Needed& needed) { needed[0].spec.ranks[1] = 2; }), HasSubstr("ranks are not on these"));
  EXPECT_THAT(refusal([](Needed& needed) { needed[0].spec.ranks[1] = 9; }), HasSubstr("ranks are not on these"));
  plan::TransferOptions rounded;
  rounded.partial_sums = plan::PartialSums::BFloat16;
  EXPECT_THAT(refusal([](Needed&) {}, rounded), HasSubstr("rounds partial sums to bfloat16"));
  EXPECT_EQ(refusal([](Needed&) {}), "taken");
}

}  // namespace
}  // namespace gradsync::device
