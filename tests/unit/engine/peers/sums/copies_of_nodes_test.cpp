// What rows of several nodes say together.

#include "engine/peers/sums/copies_of_nodes.hpp"

#include "unit/engine/peers/sums/copied_plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace gradsync::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(CopiesOfNodes, names_the_rank_that_differs_and_those_that_most_agree_with) {
  const JudgedCopies judged = judge_copies(
      plan_of_copies(), kNodesOfCopies, {row_of(0, 0, 3, 9), row_of(0, 0, 0, 4), row_of(0, 0, 1, 4), row_of(0, 0, 2, 4)}
  );
  ASSERT_EQ(judged.divergence.size(), 1u);
  EXPECT_THAT(judged.divergence[0].ranks, ElementsAre(3));
  EXPECT_THAT(judged.divergence[0].majority, ElementsAre(0, 1, 2));
  EXPECT_THAT(judged.divergence[0].suspects, ElementsAre(3));
  EXPECT_THAT(judged.uncounted, IsEmpty());
  EXPECT_FALSE(judged.sums_differ);
}

TEST(CopiesOfNodes, sums_that_differ_by_rounding_alone_are_no_divergence) {
  const JudgedCopies judged =
      judge_copies(plan_of_copies(), kNodesOfCopies, {row_of(0, 0, 0, 4), row_of(0, 0, 2, std::nextafter(4.0, 5.0))});
  EXPECT_THAT(judged.divergence, IsEmpty());
  EXPECT_TRUE(judged.sums_differ);
}

TEST(CopiesOfNodes, counts_a_box_whose_owner_has_no_gradient_from_the_next_node) {
  const plan::Plan plan = plan_of_copies();
  const JudgedCopies judged =
      judge_copies(plan, kNodesOfCopies, {row_of(0, 0, 0, 0), row_of(0, 0, 1, 0), row_of(0, 0, 2, 16)});
  ASSERT_EQ(judged.uncounted.size(), 1u);
  EXPECT_EQ(judged.uncounted[0].rank, 2);
  ASSERT_EQ(judged.missing.size(), 1u);
  EXPECT_THAT(judged.missing[0].ranks, ElementsAre(0, 1));
  NodeCells cells = cells_of(9, 4);
  count_rows(plan, judged.uncounted, cells);
  EXPECT_EQ(cells.whole.power_sum.high, 25);
  EXPECT_EQ(cells.counted_elements, 8u);
}

TEST(CopiesOfNodes, a_tied_copy_has_to_agree_with_what_is_counted_for_it) {
  const JudgedCopies judged = judge_copies(plan_of_copies(), kNodesOfCopies, {row_of(1, 0, 0, 4), row_of(2, 0, 3, 9)});
  ASSERT_EQ(judged.divergence.size(), 1u);
  EXPECT_EQ(judged.divergence[0].tensor, 2u);
  EXPECT_THAT(judged.divergence[0].suspects, ElementsAre(3));
}

TEST(CopiesOfNodes, tied_copies_that_agree_are_the_majority_beside_one_that_does_not) {
  plan::Plan plan = plan_of_copies();
  plan.tensors[2] = tensor_held_by(1, {{1, 0}, {3, 0}});
  plan.tensors[2].counted_boxes = {0};
  const JudgedCopies judged =
      judge_copies(plan, kNodesOfCopies, {row_of(1, 0, 0, 4), row_of(2, 0, 1, 4), row_of(2, 0, 3, 9)});
  ASSERT_EQ(judged.divergence.size(), 1U);
  EXPECT_THAT(judged.divergence[0].majority, ElementsAre(1));
  EXPECT_THAT(judged.divergence[0].suspects, ElementsAre(3));
}

TEST(CopiesOfNodes, a_tied_copy_with_a_gradient_that_nothing_counts_for_is_suspect) {
  const JudgedCopies judged = judge_copies(plan_of_copies(), kNodesOfCopies, {row_of(1, 0, 0, 0), row_of(2, 0, 3, 9)});
  ASSERT_EQ(judged.divergence.size(), 1U);
  EXPECT_THAT(judged.divergence[0].suspects, ElementsAre(3));
  ASSERT_EQ(judged.missing.size(), 1U);
  EXPECT_EQ(judged.missing[0].tensor, 1U);
  EXPECT_THAT(judged.uncounted, IsEmpty()) << "a tied copy is never counted";
}

TEST(CopiesOfNodes, a_box_that_no_rank_has_a_gradient_of_is_not_missing) {
  const JudgedCopies judged = judge_copies(plan_of_copies(), kNodesOfCopies, {row_of(0, 0, 0, 0), row_of(0, 0, 2, 0)});
  EXPECT_THAT(judged.missing, IsEmpty());
  EXPECT_THAT(judged.divergence, IsEmpty());
}

TEST(CopiesOfNodes, what_was_read_takes_the_place_of_what_nodes_found_alone) {
  NodeFindings all;
  all.divergence = {{0, {1}, {}, {0, 1}}, {2, {2, 3}, {}, {2, 3}}};
  all.absent = {{1, 1}};
  JudgedCopies judged =
      judge_copies(plan_of_copies(), kNodesOfCopies, {row_of(1, 0, 0, 4), row_of(2, 0, 3, 4), row_of(0, 0, 3, 4)});
  judged.missing = {{1, {0}}, {2, {3}}};
  add_judged(judged, all);
  ASSERT_EQ(all.divergence.size(), 2U);
  EXPECT_THAT(all.divergence[0].ranks, ElementsAre(1)) << "the copy of rank 1 was not read";
  EXPECT_THAT(all.divergence[1].ranks, ElementsAre(2)) << "that of rank 3 is right";
  EXPECT_THAT(all.divergence[1].suspects, ElementsAre(2));
  ASSERT_EQ(all.missing.size(), 1U) << "what no node has is absent";
  EXPECT_EQ(all.missing[0].tensor, 2U);
  judged.read = {{0, 1}, {2, 2}};
  add_judged(judged, all);
  EXPECT_THAT(all.divergence, IsEmpty());
}

TEST(CopiesOfNodes, a_result_without_a_gradient_is_missing_and_differs_and_the_first_sum_that_has_one_counts) {
  const plan::Plan plan = plan_of_results();
  const JudgedCopies judged = judge_copies(
      plan, kNodesOfCopies, {row_of(5, 0, 0, 16), row_of(5, 0, 1, 16), row_of(5, 0, 2, 0), row_of(5, 0, 3, 0)}
  );
  ASSERT_EQ(judged.missing.size(), 1U);
  EXPECT_THAT(judged.missing[0].ranks, ElementsAre(2, 3));
  ASSERT_EQ(judged.divergence.size(), 1U);
  EXPECT_THAT(judged.divergence[0].ranks, ElementsAre(2, 3));
  EXPECT_THAT(judged.divergence[0].majority, IsEmpty()) << "two have it, and two have not";
  EXPECT_THAT(judged.divergence[0].suspects, ElementsAre(0, 1, 2, 3));
  ASSERT_EQ(judged.uncounted.size(), 1U);
  EXPECT_EQ(judged.uncounted[0].rank, 0);
  NodeCells cells = cells_of(9, 4);
  count_rows(plan, judged.uncounted, cells);
  EXPECT_EQ(cells.whole.power_sum.high, 25);
  EXPECT_EQ(cells.counted_elements, 8U);
}

TEST(CopiesOfNodes, results_are_compared_with_the_first_sum_whichever_ranks_get_it) {
  PeerRows::Row nonfinite = row_of(5, 0, 0, 16);
  nonfinite.row.nonfinite = 3;
  const JudgedCopies judged = judge_copies(
      plan_of_results(), kNodesOfCopies, {nonfinite, row_of(5, 0, 1, 4), row_of(5, 0, 2, 4), row_of(5, 0, 3, 4)}
  );
  ASSERT_EQ(judged.divergence.size(), 1U);
  EXPECT_THAT(judged.divergence[0].ranks, ElementsAre(0));
  EXPECT_THAT(judged.divergence[0].majority, ElementsAre(1, 2, 3));
  EXPECT_THAT(judged.divergence[0].suspects, ElementsAre(0));
  EXPECT_THAT(judged.missing, IsEmpty());
  EXPECT_THAT(judged.uncounted, IsEmpty());
  ASSERT_EQ(judged.nonfinite.size(), 1U);
  EXPECT_EQ(judged.nonfinite[0].count, 3U) << "what the counted sum has not";
}

TEST(CopiesOfNodes, counts_rows_in_the_group_and_layer_of_their_tensor) {
  plan::Plan plan = plan_of_copies();
  plan.tensors[0].declaration.layer = "first";
  plan.tensors[1].declaration.layer = "second";
  plan.tensors[1].clip_group = 1;
  NodeCells cells = cells_of(9, 4);
  cells.groups.resize(2);
  cells.layers.resize(2);
  count_rows(plan, {row_of(1, 1, 2, 16)}, cells);
  EXPECT_EQ(cells.whole.power_sum.high, 25);
  EXPECT_EQ(cells.groups[0].power_sum.high, 0);
  EXPECT_EQ(cells.groups[1].power_sum.high, 16);
  EXPECT_EQ(cells.layers[0].power_sum.high, 0);
  EXPECT_EQ(cells.layers[1].power_sum.high, 16);
}

}  // namespace
}  // namespace gradsync::engine
