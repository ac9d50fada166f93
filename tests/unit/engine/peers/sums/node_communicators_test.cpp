// Which communicators a plan needs on one node where its sums travel by NCCL, and the staging memory of collectives.

#include "engine/peers/sums/node_communicators.hpp"

#include "engine/peers/sums/node_plan.hpp"
#include "unit/plan/transfer/transfer_world.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gradsync::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

/// Nodes 0 and 1 have both ranks of a replica each: `whole` is summed over all ranks, `rows` over the replicas, and cut
/// within them.
plan::Plan plan_of_two_axes() {
  plan::TransferJob job(plan::mesh({{"replicate", 2}, {"shard", 2}}));
  plan::TensorDeclaration whole = plan::tensor("whole", {64});
  whole.placements = {
      {{"replicate"}, plan::Partial{plan::ReduceOp::Sum, std::nullopt}},
      {{"shard"}, plan::Partial{plan::ReduceOp::Sum, std::nullopt}}};
  plan::TensorDeclaration rows = plan::tensor("rows", {64});
  rows.placements = {
      {{"replicate"}, plan::Partial{plan::ReduceOp::Sum, std::nullopt}},
      {{"shard"}, plan::Partial{plan::ReduceOp::Sum, plan::Shard{0}}}};
  EXPECT_TRUE(job.add(whole));
  EXPECT_TRUE(job.add(rows));
  return job.plan();
}

device::LaneNodes nodes_of(const plan::Plan& plan, const std::vector<NodeNumber>& node_of_rank, NodeNumber node) {
  return lane_nodes_of(plan, comparison_of(plan, node_of_rank), node);
}

TEST(NodeCommunicators, there_is_one_for_each_set_of_nodes_and_the_lowest_rank_stands_for_a_node) {
  const plan::Plan plan = plan_of_two_axes();
  const device::LaneCommunicators made = lane_communicators_of(plan, nodes_of(plan, {0, 0, 1, 1}, 1));
  ASSERT_THAT(made.needed, SizeIs(1)) << "all sums are over both nodes";
  EXPECT_THAT(made.needed[0].nodes, ElementsAre(0U, 1U));
  EXPECT_THAT(made.needed[0].spec.ranks, ElementsAre(0, 2));
  EXPECT_EQ(made.needed[0].spec.own, 1U);
  EXPECT_THAT(made.needed[0].spec.axes, ElementsAre("replicate", "shard"));
}

TEST(NodeCommunicators, all_members_call_it_alike_and_no_other_node_has_it) {
  plan::TransferJob job(plan::mesh({{"dp", 2}, {"ep", 2}}));
  plan::TensorDeclaration expert = plan::tensor("expert", {64});
  expert.local_shape = {32};
  expert.placements = {{{"dp"}, plan::Partial{plan::ReduceOp::Sum, std::nullopt}}, {{"ep"}, plan::Shard{0}}};
  ASSERT_TRUE(job.add(expert));
  const plan::Plan plan = job.plan();
  const std::vector<NodeNumber> one_each{0, 1, 2, 3};
  const auto of_node = [&](NodeNumber node) {
    return lane_communicators_of(plan, nodes_of(plan, one_each, node)).needed;
  };
  for (NodeNumber node = 0; node < 4; ++node) {
    ASSERT_THAT(of_node(node), SizeIs(1));
    EXPECT_THAT(of_node(node)[0].spec.axes, ElementsAre("dp"));
    EXPECT_EQ(of_node(node)[0].spec.own, node / 2);
  }
  EXPECT_THAT(of_node(0)[0].spec.ranks, ElementsAre(0, 2));
  EXPECT_EQ(of_node(2)[0].spec.ranks, of_node(0)[0].spec.ranks);
  EXPECT_THAT(of_node(3)[0].spec.ranks, ElementsAre(1, 3));
}

TEST(NodeCommunicators, there_are_none_where_nothing_travels) {
  const plan::Plan plan = plan_of_two_axes();
  EXPECT_THAT(lane_communicators_of(plan, nodes_of(plan, {0, 0, 0, 0}, 0)).needed, IsEmpty());
}

/// There are 3 nodes with a rank each, which get 22, 22 and 20 rows: three places of 22 elements and a flag each, and
/// the result, rounded up to 64 bytes; two collectives at a time.
TEST(NodeCommunicators, staging_memory_has_room_for_two_collectives) {
  plan::TransferJob job(plan::mesh({{"dp", 3}}));
  plan::TensorDeclaration rows = plan::tensor("rows", {64});
  rows.placements = {{{"dp"}, plan::Partial{plan::ReduceOp::Sum, plan::Shard{0}}}};
  ASSERT_TRUE(job.add(rows));
  const plan::Plan plan = job.plan();
  const std::uint64_t place = (22 + 1) * sizeof(float);
  const device::LaneNodes nodes = nodes_of(plan, {0, 1, 2}, 0);
  EXPECT_EQ(
      collective_staging_of(nodes, collectives_by_bucket(nodes)),
      2 * (plan::align_up(3 * place) + plan::align_up(place))
  );
}

}  // namespace
}  // namespace gradsync::engine
