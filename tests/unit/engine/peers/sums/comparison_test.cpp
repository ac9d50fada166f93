// Which boxes nodes compare.

#include "engine/peers/sums/comparison.hpp"

#include "unit/engine/peers/sums/copied_plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

namespace gradsync::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST(Comparison, boxes_on_equal_sets_of_nodes_make_a_class_and_a_tied_copy_belongs_to_what_counts_for_it) {
  const Comparison comparison = comparison_of(plan_of_copies(), kNodesOfCopies);
  ASSERT_EQ(comparison.classes.size(), 1U);
  EXPECT_THAT(comparison.classes[0].nodes, ElementsAre(0U, 1U));
  EXPECT_EQ(comparison.classes[0].owner, 0U);
  EXPECT_THAT(comparison.classes[0].boxes, ElementsAre(Pair(0U, 0U), Pair(1U, 0U)));
  ASSERT_EQ(comparison.of_node.size(), 2U);
  EXPECT_THAT(comparison.of_node[1], ElementsAre(0U));
}

TEST(Comparison, the_owner_of_a_class_is_the_node_of_the_lowest_holder_also_where_ranks_interleave) {
  plan::Plan plan;
  plan.options.data_path = plan::DataPath::Stats;
  plan.tensors.push_back(tensor_held_by(0, {{1, 0}, {2, 0}}));
  plan.tensors.push_back(tensor_held_by(1, {{0, 0}, {1, 0}}));
  const Comparison comparison = comparison_of(plan, {0, 1, 0, 1});
  ASSERT_EQ(comparison.classes.size(), 2U) << "equal nodes, but not one owner";
  EXPECT_EQ(comparison.classes[0].owner, 1U);
  EXPECT_THAT(comparison.classes[0].nodes, ElementsAre(0U, 1U));
  EXPECT_EQ(comparison.classes[1].owner, 0U);
}

TEST(Comparison, a_tied_copy_on_a_lower_rank_does_not_own_the_box_that_counts_for_it) {
  plan::Plan plan;
  plan.options.data_path = plan::DataPath::Stats;
  plan.tensors.push_back(tensor_held_by(0, {{2, 0}}));
  plan.tensors.push_back(tensor_held_by(0, {{0, 0}}));
  plan.tensors[1].counted_boxes = {0};
  const Comparison comparison = comparison_of(plan, kNodesOfCopies);
  ASSERT_EQ(comparison.classes.size(), 1U);
  EXPECT_EQ(comparison.classes[0].owner, 1U);
}

TEST(Comparison, ranks_of_one_node_and_parts_without_elements_compare_nothing) {
  EXPECT_THAT(comparison_of(plan_of_copies(), {0, 0, 0, 0}).classes, IsEmpty());
  plan::Plan plan;
  plan.options.data_path = plan::DataPath::Stats;
  plan.tensors.push_back(tensor_held_by(0, {{0, 0}, {2, 0}}));
  plan.tensors[0].holdings[1].elements = 0;
  EXPECT_THAT(comparison_of(plan, kNodesOfCopies).classes, IsEmpty());
}

TEST(Comparison, parts_with_several_sums_are_compared_where_gradients_travel_unless_all_is_on_one_node) {
  const Comparison comparison = comparison_of(plan_of_results(), kNodesOfCopies);
  ASSERT_EQ(comparison.classes.size(), 3U);
  EXPECT_THAT(comparison.classes[0].nodes, ElementsAre(0U, 1U));
  EXPECT_EQ(comparison.classes[0].owner, 0U);
  EXPECT_THAT(comparison.classes[0].boxes, ElementsAre(Pair(0U, 0U), Pair(1U, 0U)));
  EXPECT_THAT(comparison.classes[1].nodes, ElementsAre(1U)) << "its first sum may have no gradient";
  EXPECT_EQ(comparison.classes[1].owner, 1U);
  EXPECT_THAT(comparison.classes[1].boxes, ElementsAre(Pair(4U, 1U)));
  EXPECT_EQ(comparison.classes[2].owner, 1U) << "the node that gets the first sum";
  EXPECT_THAT(comparison.classes[2].boxes, ElementsAre(Pair(5U, 0U)));
  EXPECT_THAT(comparison.of_node[0], ElementsAre(0U, 2U));
  EXPECT_THAT(comparison.of_node[1], ElementsAre(0U, 1U, 2U));
  EXPECT_THAT(comparison_of(plan_of_results(), {0, 0, 0, 0}).classes, IsEmpty());
}

TEST(Comparison, rows_of_results_belong_to_ranks_that_hold_the_part_or_a_tied_copy_of_it) {
  plan::Plan plan = plan_of_results();
  const Comparison comparison = comparison_of(plan, kNodesOfCopies);
  const std::vector<Comparison::Box> boxes{{4, 1}};
  EXPECT_TRUE(belongs(plan, comparison, 1, boxes, row_of(4, 1, 2, 4)));
  EXPECT_FALSE(belongs(plan, comparison, 0, boxes, row_of(4, 1, 1, 4))) << "a rank that does not get it";
  EXPECT_FALSE(belongs(plan, comparison, 1, boxes, row_of(4, 0, 2, 4)));
  EXPECT_FALSE(belongs(plan, comparison, 1, boxes, row_of(4, 2, 2, 4))) << "no such part";
  EXPECT_FALSE(belongs(plan, comparison, 1, boxes, row_of(0, 0, 2, 4))) << "it was not asked for";
  plan.tensors.push_back(tensor_held_by(4, {{1, 1}}));
  plan.tensors[4].copies = {6};
  EXPECT_TRUE(belongs(plan, comparison, 0, boxes, row_of(4, 1, 1, 4)));
}

PeerAsk fitting_ask() {
  PeerAsk ask;
  ask.sites.emplace_back().row_hashes = {1};
  return ask;
}

TEST(Comparison, an_ask_that_does_not_fit_the_plan_is_said_to) {
  const plan::Plan plan = plan_of_copies();
  const Comparison comparison = comparison_of(plan, kNodesOfCopies);
  EXPECT_EQ(misfit_of(plan, comparison, {1}, fitting_ask()), std::nullopt);
  const std::vector<std::pair<std::function<void(PeerAsk&)>, const char*>> faults{
      {[](PeerAsk& ask) {
         ask.sites[0].findings.absent = {{1, 3}};
       },
       "names a tensor that is none of the 3 of the plan"},
      {[](PeerAsk& ask) {
         ask.sites[0].findings.nonfinite = {{3, 1, {}}};
       },
       "names a tensor that is none of the 3 of the plan"},
      {[](PeerAsk& ask) {
         ask.sites[0].findings.missing = {{9, {}}};
       },
       "names a tensor that is none of the 3 of the plan"},
      {[](PeerAsk& ask) { ask.sites.clear(); }, "has sums of 0 devices, and its node 1"},
      {[](PeerAsk& ask) { ask.sites.push_back(ask.sites[0]); }, "has sums of 2 devices, and its node 1"},
      {[](PeerAsk& ask) { ask.terms.kind = Ask::Kind::Clip; }, "has sums that nothing asks for"},
      {[](PeerAsk& ask) { ask.sites[0].cells.layers.emplace_back(); },
       "has sums of 0 clip groups and 1 layers, and the plan 0 and 0"},
      {[](PeerAsk& ask) { ask.sites[0].row_hashes.clear(); }, "has 0 hashes for 1 classes"},
  };
  for (const auto& [change, what] : faults) {
    PeerAsk ask = fitting_ask();
    change(ask);
    EXPECT_EQ(misfit_of(plan, comparison, {1}, ask), what);
  }
}

TEST(Comparison, rows_belong_to_what_was_asked_of_ranks_of_that_node) {
  const plan::Plan plan = plan_of_copies();
  const Comparison comparison = comparison_of(plan, kNodesOfCopies);
  const std::vector<Comparison::Box> boxes{{1, 0}};
  EXPECT_TRUE(belongs(plan, comparison, 0, boxes, row_of(1, 0, 0, 4)));
  EXPECT_TRUE(belongs(plan, comparison, 1, boxes, row_of(2, 0, 3, 4))) << "a tied copy of it";
  EXPECT_FALSE(belongs(plan, comparison, 1, boxes, row_of(1, 0, 0, 4))) << "a rank of another node";
  EXPECT_FALSE(belongs(plan, comparison, 0, boxes, row_of(0, 0, 0, 4))) << "a box that was not asked for";
  EXPECT_FALSE(belongs(plan, comparison, 1, boxes, row_of(1, 1, 2, 4))) << "another box";
  EXPECT_FALSE(belongs(plan, comparison, 0, boxes, row_of(1, 0, 1, 4))) << "a rank that does not hold it";
  EXPECT_FALSE(belongs(plan, comparison, 0, boxes, row_of(7, 0, 0, 4)));
  EXPECT_FALSE(belongs(plan, comparison, 0, boxes, row_of(1, 0, -1, 4)));
  EXPECT_FALSE(belongs(plan, comparison, 0, boxes, row_of(1, 0, 4, 4)));
}

}  // namespace
}  // namespace gradsync::engine
