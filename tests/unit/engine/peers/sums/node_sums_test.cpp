// What nodes sum to, and what they find together.

#include "engine/peers/sums/node_sums.hpp"

#include "unit/engine/peers/sums/copied_plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

namespace gradsync::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

NodeCells layered_cells_of(double square, std::uint64_t elements) {
  NodeCells cells = cells_of(square, elements);
  cells.layers = {cells.whole};
  return cells;
}

TEST(NodeSums, adds_cells_so_that_every_node_decides_by_the_same_norm) {
  const NodeCells first = layered_cells_of(9, 4);
  const NodeCells second = layered_cells_of(16, 6);
  const NodeCells all = sum_of_nodes(2, std::array<const NodeCells*, 2>{&first, &second});
  EXPECT_EQ(all.whole.power_sum.high, 25);
  EXPECT_EQ(all.whole.maximum, 4);
  EXPECT_EQ(all.counted_elements, 10u);
  plan::ClipRule rule;
  rule.max_norm = 2.5;
  const device::StepMath math = decide(2, all, {}, {rule}, 1);
  EXPECT_EQ(math.norm, 5);
  EXPECT_THAT(math.layer_norms, ElementsAre(5));
  EXPECT_EQ(math.groups.front().coefficient, 0.5);
}

TEST(NodeSums, a_value_that_is_not_finite_on_one_node_makes_the_norm_so_on_all) {
  const NodeCells first = layered_cells_of(9, 4);
  NodeCells second = layered_cells_of(16, 6);
  second.whole.nonfinite = second.whole.nan = 1;
  EXPECT_TRUE(std::isnan(decide(2, sum_of_nodes(2, std::array<const NodeCells*, 2>{&first, &second}), {}, {{}}, 1).norm)
  );
}

TEST(NodeSums, the_digest_tells_norm_bits_and_policies_apart) {
  device::StepMath math = decide(2, layered_cells_of(9, 4), {}, {{}}, 1);
  const std::string digest = result_digest(math, "policies");
  EXPECT_EQ(digest.size(), 16u);
  EXPECT_EQ(digest, result_digest(math, "policies"));
  EXPECT_NE(digest, result_digest(math, "other"));
  math.norm = std::nextafter(math.norm, 4);
  EXPECT_NE(digest, result_digest(math, "policies"));
}

TEST(NodeSums, a_tensor_is_absent_where_all_nodes_say_so_and_else_missing_on_their_ranks) {
  const plan::Plan plan = plan_of_copies();
  NodeFindings first;
  NodeFindings second;
  first.absent = {{0, 2}};
  second.absent = {{0, 1}};
  const NodeFindings all = join_findings(plan, kNodesOfCopies, std::array<const NodeFindings*, 2>{&first, &second});
  EXPECT_THAT(all.absent, ElementsAre(Pair(0, 1)));
  ASSERT_EQ(all.missing.size(), 1u);
  EXPECT_EQ(all.missing.front().tensor, 1u);
  EXPECT_THAT(all.missing.front().ranks, ElementsAre(0));
}

/// Data path arena, ranks 0 and 1 on node 0, 2 and 3 on node 1. Tensor 0 is summed over all, with tensor 2 as a tied
/// copy on rank 3; tensor 1 has a part on each node, whose ranks alone are summed.
plan::Plan plan_of_sums() {
  plan::Plan plan;
  plan.sums = {
      {{{{0, 0}, {1, 0}, {3, 1}}, {{0, 0}, {1, 0}, {3, 1}}}},
      {{{{0, 0}, {1, 0}}, {{0, 0}}}},
      {{{{2, 0}, {3, 0}}, {{2, 0}}}}};
  plan.tensors = {tensor_held_by(0, {{0, 0}, {1, 0}}), tensor_held_by(1, {}), tensor_held_by(0, {{3, 0}})};
  plan.tensors[0].parts.resize(1);
  plan.tensors[0].copies = {2};
  plan.tensors[1].parts.resize(2);
  plan.tensors[1].parts[0].sums = 1;
  plan.tensors[1].parts[1].sums = 2;
  return plan;
}

NodeFindings joined(const NodeFindings& first, const NodeFindings& second) {
  return join_findings(plan_of_sums(), kNodesOfCopies, std::array<const NodeFindings*, 2>{&first, &second});
}

TEST(NodeSums, where_gradients_travel_a_tensor_is_absent_when_all_nodes_of_its_sums_say_so) {
  NodeFindings first;
  NodeFindings second;
  first.absent = {{0, 1}};
  EXPECT_THAT(joined(first, second).absent, IsEmpty()) << "rank 3 has a gradient of its tied copy";
  EXPECT_THAT(joined(first, second).missing, IsEmpty()) << "all get the sum";
  second.absent = {{2, 1}};
  EXPECT_THAT(joined(first, second).absent, ElementsAre(Pair(0, 1), Pair(2, 1)));
}

TEST(NodeSums, where_gradients_travel_ranks_are_missing_whose_sum_nobody_contributed_to) {
  NodeFindings first;
  NodeFindings second;
  second.absent = {{1, 1}};
  second.missing = {{0, {3}}};
  const NodeFindings some = joined(first, second);
  EXPECT_THAT(some.absent, IsEmpty());
  ASSERT_EQ(some.missing.size(), 2u);
  EXPECT_THAT(some.missing[0].ranks, ElementsAre(3)) << "as its node says";
  EXPECT_EQ(some.missing[1].tensor, 1u);
  EXPECT_THAT(some.missing[1].ranks, ElementsAre(2));
  first.absent = {{0, 2}};
  second.absent = {{1, 2}};
  const NodeFindings none = joined(first, second);
  EXPECT_THAT(none.absent, ElementsAre(Pair(0, 3)));
  EXPECT_THAT(none.missing, IsEmpty());
}

TEST(NodeSums, findings_of_one_tensor_become_one) {
  NodeFindings all;
  all.nonfinite = {{3, 2, {{0, 2}}}};
  all.nonfinite_total = 2;
  NodeFindings some;
  some.nonfinite = {{1, 1, {{2, 1}}}, {3, 0, {{2, 5}}}};
  some.nonfinite_total = 1;
  add_findings(some, all);
  ASSERT_EQ(all.nonfinite.size(), 2u);
  EXPECT_EQ(all.nonfinite[0].tensor, 1u);
  EXPECT_EQ(all.nonfinite[1].count, 2u);
  EXPECT_THAT(all.nonfinite[1].inputs, ElementsAre(Pair(0, 2), Pair(2, 5)));
  EXPECT_EQ(all.nonfinite_total, 3u);
}

TEST(NodeSums, adds_in_the_order_of_nodes_whatever_the_scales) {
  NodeCells first = cells_of(9, 4);
  NodeCells second = cells_of(4, 4);
  second.whole.scale = 2;  // Σ (g / 2)², so that it stands for 16
  const NodeCells all = sum_of_nodes(2, std::array<const NodeCells*, 2>{&first, &second});
  EXPECT_EQ(decide(2, all, {}, {{}}, 1).norm, 5);
}

TEST(NodeSums, each_clip_group_and_each_layer_has_a_sum_of_its_own) {
  NodeCells first = layered_cells_of(25, 4);
  first.groups = {cells_of(9, 0).whole, cells_of(16, 0).whole};
  const NodeCells all = sum_of_nodes(2, std::array<const NodeCells*, 2>{&first, &first});
  const device::StepMath math = decide(2, all, {}, {{}, {}}, 1);
  EXPECT_EQ(math.raw_group_norms, (std::vector<double>{std::sqrt(18.0), std::sqrt(32.0)}));
  EXPECT_THAT(math.layer_norms, ElementsAre(std::sqrt(50.0)));
}

TEST(NodeSums, no_more_findings_are_kept_than_a_report_has_room_for) {
  NodeFindings all;
  for (std::uint32_t tensor = 0; tensor < 2 * device::kMaxFindings; ++tensor) {
    NodeFindings some;
    some.missing = {{tensor, {0}}};
    add_findings(some, all);
  }
  EXPECT_EQ(all.missing.size(), device::kMaxFindings);
  EXPECT_EQ(all.missing.back().tensor, device::kMaxFindings - 1);
}

}  // namespace
}  // namespace gradsync::engine
