// Which groups of ranks exchange gradients over nodes, and what one node moves for each, by the sizes of the program.

#include "engine/report/communicators.hpp"

#include "base/text/hash.hpp"
#include "engine/peers/sums/node_communicators.hpp"
#include "engine/peers/sums/node_plan.hpp"
#include "plan/transfer/communicator_name.hpp"
#include "unit/plan/transfer/transfer_world.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

namespace gradsync::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr TimePoint kAsked{std::chrono::seconds(100)};

Communicators of_node(const plan::Plan& plan, const std::vector<NodeNumber>& nodes, NodeNumber node) {
  Communicators communicators;
  communicators.add(plan, lane_nodes_of(plan, comparison_of(plan, nodes), node));
  return communicators;
}

TEST(Communicators, have_the_name_of_their_axes_and_ranks) {
  std::string bytes(16, '\0');
  bytes[8] = 2;
  EXPECT_EQ(plan::communicator_name({"dp"}, {0, 2}), "dp:" + hex64(hash64(bytes)));
  EXPECT_EQ(plan::communicator_name({"dp_replicate", "dp_shard"}, {0, 2}).substr(0, 22), "dp_replicate+dp_shard:");
  EXPECT_NE(plan::communicator_name({"dp"}, {0, 1}), plan::communicator_name({"dp"}, {0, 2}));
}

TEST(Communicators, have_a_name_of_limited_length_that_is_cut_between_characters) {
  const std::string end = plan::communicator_name({"dp"}, {0, 2}).substr(2);
  const std::size_t most = plan::kCommunicatorNameBytes - end.size();
  EXPECT_EQ(plan::communicator_name({std::string(most, 'a')}, {0, 2}), std::string(most, 'a') + end);
  EXPECT_EQ(plan::communicator_name({std::string(most, 'a'), "dp"}, {0, 2}), std::string(most, 'a') + end);
  EXPECT_EQ(plan::communicator_name({std::string(most - 1, 'a') + "ß"}, {0, 2}), std::string(most - 1, 'a') + end);
}

TEST(Communicators, count_what_the_program_of_the_node_moves) {
  plan::TransferJob job(plan::mesh({{"dp", 4}}));
  ASSERT_TRUE(job.add(plan::tensor("w", {100})));
  const plan::Plan plan = job.plan();
  Communicators node = of_node(plan, {0, 0, 1, 1}, 0);
  ASSERT_THAT(node.status(7, "idle", kAsked), SizeIs(1));
  const CommunicatorStatus unused = node.status(7, "idle", kAsked)[0];
  EXPECT_EQ(unused.name, plan::communicator_name({"dp"}, {0, 1, 2, 3}));
  EXPECT_THAT(unused.ranks, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(unused.epoch, 7U);
  EXPECT_EQ(unused.transport, "sockets");
  EXPECT_EQ(unused.operations, 0U);
  EXPECT_EQ(unused.operations_per_step, 1U);
  EXPECT_EQ(node.collectives_of(0, 0), 0U);
  EXPECT_EQ(unused.last_use_age_s, -1);
  EXPECT_EQ(node.bytes_of(0, 0), 804U) << "as worked out in docs/adr/0032: 145 and 257 bytes each way";
  node.on_reduced(0, 0, kAsked);
  node.on_reduced(0, 0, kAsked);
  node.on_reduced(0, 9, kAsked);  // no bucket of the plan
  const CommunicatorStatus used = node.status(7, "reducing", kAsked + std::chrono::seconds(3))[0];
  EXPECT_EQ(used.sent_bytes, 804U);
  EXPECT_EQ(used.received_bytes, 804U);
  EXPECT_EQ(used.operations, 2U);
  EXPECT_EQ(used.last_use_age_s, 3);
  EXPECT_EQ(used.state, "reducing");
}

/// There are two nodes with a rank each. Rows are scattered, so that a node gives the places of both and gets its own.
/// A place has 50 elements of the larger part and one number that says who contributed.
TEST(Communicators, count_collectives_where_nccl_carries_what_travels) {
  plan::TransferJob job(plan::mesh({{"dp", 2}}));
  plan::TensorDeclaration rows = plan::tensor("rows", {100});
  rows.placements = {{{"dp"}, plan::Partial{plan::ReduceOp::Sum, plan::Shard{0}}}};
  ASSERT_TRUE(job.add(rows));
  const plan::Plan plan = job.plan();
  device::LaneNodes nodes = lane_nodes_of(plan, comparison_of(plan, {0, 1}), 1);
  nodes.communicators = lane_communicators_of(plan, nodes);
  Communicators node;
  node.add(plan, nodes, collectives_by_bucket(nodes));
  EXPECT_EQ(node.collectives_of(0, 0), 1U);
  EXPECT_EQ(node.collectives_of(0, 9), 0U);
  node.on_reduced(0, 0, kAsked);
  node.on_reduced(0, 0, kAsked);
  ASSERT_THAT(node.status(7, "idle", kAsked), SizeIs(1));
  const CommunicatorStatus used = node.status(7, "idle", kAsked)[0];
  EXPECT_EQ(used.name, plan::communicator_name({"dp"}, {0, 1}));
  EXPECT_THAT(used.ranks, ElementsAre(0, 1));
  EXPECT_EQ(used.transport, "nccl");
  EXPECT_EQ(used.operations, 2U);
  EXPECT_EQ(used.operations_per_step, 1U);
  EXPECT_EQ(used.sent_bytes, 2U * 2 * 51 * sizeof(float));
  EXPECT_EQ(used.received_bytes, 2U * 51 * sizeof(float));
}

/// Two GPUs of this node, and one of another; all three are members of one communicator.
TEST(Communicators, of_several_gpus_of_a_node_are_counted_once_and_their_bytes_together) {
  plan::TransferJob job(plan::mesh({{"dp", 3}}));
  ASSERT_TRUE(job.add(plan::tensor("w", {100})));
  const plan::Plan plan = job.plan();
  Communicators node;
  for (const SiteNumber site : {0U, 1U}) {
    device::LaneNodes nodes = lane_nodes_of(plan, comparison_of(plan, {0, 1, 2}), site);
    nodes.communicators = lane_communicators_of(plan, nodes);
    node.add(plan, nodes, collectives_by_bucket(nodes));
  }
  EXPECT_EQ(node.collectives_of(0, 0), 1U) << "of three blocks";
  EXPECT_EQ(node.collectives_of(1, 0), 0U) << "the first lane has counted it";
  EXPECT_EQ(node.collectives_of(2, 0), 0U) << "there is no such lane";
  node.on_reduced(0, 0, kAsked);
  node.on_reduced(1, 0, kAsked);
  ASSERT_THAT(node.status(7, "idle", kAsked), SizeIs(1));
  const CommunicatorStatus used = node.status(7, "idle", kAsked)[0];
  EXPECT_THAT(used.ranks, ElementsAre(0, 1, 2));
  EXPECT_EQ(used.operations, 1U);
  EXPECT_EQ(used.operations_per_step, 1U);
  EXPECT_EQ(used.sent_bytes, 2U * (64 + 64 + 37) * sizeof(float)) << "32, 32 and 36 elements, and a number for each";
}

TEST(Communicators, are_those_that_the_node_takes_part_in) {
  plan::TransferJob job(plan::mesh({{"dp", 3}}));
  plan::TensorDeclaration all = plan::tensor("all", {64});
  ASSERT_TRUE(job.add(all));
  const plan::Plan plan = job.plan();
  EXPECT_THAT(of_node(plan, {0, 1, 2}, 2).status(1, "idle", kAsked), SizeIs(1));
  EXPECT_THAT(of_node(plan, {0, 0, 0}, 0).status(1, "idle", kAsked), IsEmpty()) << "nothing travels";
  EXPECT_THAT(Communicators().status(1, "idle", kAsked), IsEmpty());
}

}  // namespace
}  // namespace gradsync::engine
