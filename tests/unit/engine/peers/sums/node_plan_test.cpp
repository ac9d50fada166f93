// What of a plan the lane of one node gets, and which rows are wanted of it.

#include "engine/peers/sums/node_plan.hpp"

#include "engine/plan/lane_plan.hpp"
#include "unit/engine/peers/sums/copied_plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gradsync::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

struct NodeSumsOfCopies : testing::Test {
  [[nodiscard]] device::StatsPlan layout_of(NodeNumber node) const {
    return stats_plan_of_node(std::get<device::StatsPlan>(lane_layout_of(plan)), comparison, node);
  }

  plan::Plan plan = [] {
    plan::Plan made = plan_of_copies();
    made.options.data_path = plan::DataPath::Stats;
    made.norm_groups.resize(1);
    made.norm_groups[0].tensors = {0, 1};
    return made;
  }();
  Comparison comparison = comparison_of(plan, kNodesOfCopies);
};

TEST_F(NodeSumsOfCopies, a_node_loads_its_holders_and_knows_what_a_lower_rank_elsewhere_holds) {
  const device::StatsPlan first = layout_of(0);
  EXPECT_EQ(first.tensors.size(), 3U);
  EXPECT_EQ(first.tensors[0].holders.size(), 2U);
  EXPECT_EQ(first.tensors[1].holders.size(), 1U);
  EXPECT_THAT(first.tensors[2].holders, IsEmpty());
  EXPECT_THAT(first.ties, IsEmpty()) << "the copy is on the other node";
  EXPECT_THAT(first.elsewhere, IsEmpty());
  EXPECT_THAT(first.classes, ElementsAre(ElementsAre(Pair(0U, 0U), Pair(1U, 0U))));
  const device::StatsPlan second = layout_of(1);
  EXPECT_EQ(second.tensors[2].holders.size(), 1U);
  EXPECT_EQ(second.ties.size(), 1U);
  EXPECT_THAT(second.elsewhere, ElementsAre(Pair(0U, 0U))) << "the second half of tensor 1 is its own";
  EXPECT_EQ(second.classes, first.classes);
}

TEST(NodePlan, the_lane_of_a_node_gets_the_classes_of_results_that_it_is_in) {
  const plan::Plan plan = plan_of_results();
  const Comparison comparison = comparison_of(plan, kNodesOfCopies);
  EXPECT_THAT(
      lane_nodes_of(plan, comparison, 0).classes,
      ElementsAre(ElementsAre(Pair(0U, 0U), Pair(1U, 0U)), ElementsAre(Pair(5U, 0U)))
  );
  EXPECT_THAT(lane_nodes_of(plan, comparison, 1).classes, testing::SizeIs(3));
}

TEST_F(NodeSumsOfCopies, a_box_without_a_holder_here_is_not_said_to_be_elsewhere) {
  comparison = comparison_of(plan, {0, 1, 1, 0});
  EXPECT_THAT(layout_of(0).elsewhere, IsEmpty());
  EXPECT_THAT(layout_of(1).elsewhere, ElementsAre(Pair(0U, 0U)));
}

TEST_F(NodeSumsOfCopies, what_is_wanted_is_named_by_the_classes_that_the_node_has) {
  plan.tensors = {
      tensor_held_by(0, {{0, 0}, {1, 0}}), tensor_held_by(1, {{1, 0}, {2, 0}}), tensor_held_by(2, {{0, 0}, {2, 0}})};
  comparison = comparison_of(plan, {0, 1, 2});
  ASSERT_EQ(comparison.classes.size(), 3U);
  PeerCompare wanted;
  wanted.classes = {0, 1, 2};
  EXPECT_THAT(rows_wanted_of(comparison, 0, wanted).classes, ElementsAre(0, 1));
  wanted.classes = {1, 2};
  EXPECT_THAT(rows_wanted_of(comparison, 2, wanted).classes, ElementsAre(0, 1));
  EXPECT_THAT(rows_wanted_of(comparison, 1, wanted).classes, ElementsAre(1));
  wanted.classes = {2, 2, 0, 9};
  EXPECT_THAT(rows_wanted_of(comparison, 2, wanted).classes, ElementsAre(1)) << "once, whatever was sent";
  wanted = {};
  wanted.boxes = {{0, 0}, {1, 0}, {2, 0}};
  EXPECT_THAT(rows_wanted_of(comparison, 1, wanted).boxes, ElementsAre(Pair(0U, 0U), Pair(1U, 0U)));
  wanted.boxes = {{1, 0}, {0, 0}, {1, 0}};
  EXPECT_THAT(rows_wanted_of(comparison, 1, wanted).boxes, ElementsAre(Pair(0U, 0U), Pair(1U, 0U)));
}

}  // namespace
}  // namespace gradsync::engine
