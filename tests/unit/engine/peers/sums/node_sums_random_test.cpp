// A step of several nodes is the step of one: the same findings, and norms that differ in their last bit at most.

#include "unit/engine/peers/sums/split_world.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <tuple>

namespace gradsync::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::uint64_t kSplitWorlds = 400;
constexpr double kMaximumNorm = std::numeric_limits<double>::infinity();

/// Sums that only one node counts have its bits; others were added in another order.
void expect_close(double one, double nodes, bool equal, const std::string& what) {
  if (std::isnan(one) || std::isinf(one) || equal) {
    EXPECT_TRUE(one == nodes || (std::isnan(one) && std::isnan(nodes))) << what << " " << one << " " << nodes;
    return;
  }
  EXPECT_LE(std::abs(one - nodes), std::nextafter(std::abs(one), HUGE_VAL) - std::abs(one))
      << what << " " << one << " " << nodes;
}

bool one_node_counts(const std::vector<NodeCells>& cells) {
  return 1 >= std::ranges::count_if(cells, [](const NodeCells& node) { return node.counted_elements != 0; });
}

void expect_norms(const device::StepMath& one, const StepOfNodes& step) {
  const device::StepMath& nodes = step.math;
  const bool equal = one_node_counts(step.cells) && !step.compared;
  expect_close(one.norm, nodes.norm, equal, "norm");
  ASSERT_EQ(one.raw_group_norms.size(), nodes.raw_group_norms.size());
  for (std::size_t group = 0; group < one.raw_group_norms.size(); ++group) {
    expect_close(one.raw_group_norms[group], nodes.raw_group_norms[group], equal, "group");
    EXPECT_EQ(one.groups[group].action, nodes.groups[group].action);
  }
  ASSERT_EQ(one.layer_norms.size(), nodes.layer_norms.size());
  for (std::size_t layer = 0; layer < one.layer_norms.size(); ++layer) {
    expect_close(one.layer_norms[layer], nodes.layer_norms[layer], equal, "layer");
  }
  EXPECT_EQ(one.counted_elements, nodes.counted_elements);
}

template <typename Finding, typename Members>
void expect_same(const std::vector<Finding>& one, const std::vector<Finding>& nodes, Members members) {
  ASSERT_EQ(one.size(), nodes.size());
  for (std::size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(members(one[i]), members(nodes[i])) << "of tensor " << one[i].tensor;
  }
}

void expect_findings(const device::StepMath& one, const device::StepMath& nodes) {
  expect_same(one.nonfinite, nodes.nonfinite, [](const device::NonfiniteFinding& found) {
    return std::tuple(found.tensor, found.count, found.inputs);
  });
  expect_same(one.divergence, nodes.divergence, [](const device::DivergenceFinding& found) {
    return std::tuple(found.tensor, found.ranks, found.suspects);
  });
  for (std::size_t i = 0; i < nodes.divergence.size(); ++i) {  // one node names copies of other boxes, too
    EXPECT_TRUE(std::ranges::includes(one.divergence[i].majority, nodes.divergence[i].majority));
  }
  expect_same(one.missing, nodes.missing, [](const device::MissingFinding& found) {
    return std::tuple(found.tensor, found.ranks);
  });
  EXPECT_EQ(one.absent, nodes.absent);
  EXPECT_EQ(one.nonfinite_total, nodes.nonfinite_total);
}

class NodeSumsOfWorlds : public testing::TestWithParam<double> {};

TEST_P(NodeSumsOfWorlds, where_copies_agree_are_those_of_one_node_and_no_hash_differs) {
  int classes = 0;
  int nonfinite = 0;
  for (std::uint64_t seed = 0; seed < kSplitWorlds && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    SplitWorld world(seed, GetParam());
    world.fill(false);
    const device::StepMath one = world.on_one_node();
    const StepOfNodes step = world.on_nodes();
    EXPECT_THAT(world.differing(step), IsEmpty());
    expect_norms(one, step);
    expect_findings(one, step.math);
    classes += world.comparison().classes.empty() ? 0 : 1;
    nonfinite += one.nonfinite.empty() ? 0 : 1;
  }
  EXPECT_GT(classes, 100);
  EXPECT_GT(nonfinite, 20);
}

TEST_P(NodeSumsOfWorlds, where_ranks_have_no_gradient_are_those_of_one_node) {
  int compared = 0;
  for (std::uint64_t seed = 0; seed < kSplitWorlds && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    SplitWorld world(seed, GetParam());
    world.fill(true);
    world.forget_some();
    const device::StepMath one = world.on_one_node();
    const StepOfNodes step = world.on_nodes();
    expect_norms(one, step);
    expect_findings(one, step.math);
    compared += step.compared ? 1 : 0;
  }
  EXPECT_GT(compared, 50);
}

TEST_P(NodeSumsOfWorlds, where_one_copy_differs_the_hash_of_its_class_does_and_it_is_found_as_on_one_node) {
  int changed = 0;
  for (std::uint64_t seed = 0; seed < kSplitWorlds && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    SplitWorld world(seed, GetParam());
    world.fill(true);
    const std::vector<SplitWorld::ComparedRow> rows = world.compared_rows();
    if (rows.empty()) {
      continue;
    }
    ++changed;
    const SplitWorld::ComparedRow& one = rows[world.below(rows.size())];
    world.row(one.holding) = device::row_of(std::vector<double>(one.holding.elements, 7.5), GetParam());
    const device::StepMath together = world.on_one_node();
    const StepOfNodes step = world.on_nodes();
    EXPECT_THAT(world.differing(step), ElementsAre(one.number));
    EXPECT_FALSE(together.divergence.empty());
    expect_norms(together, step);
    expect_findings(together, step.math);
  }
  EXPECT_GT(changed, 100);
}

TEST_P(NodeSumsOfWorlds, where_one_copy_alone_is_not_finite_no_norm_of_it_is) {
  int changed = 0;
  for (std::uint64_t seed = 0; seed < kSplitWorlds && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    SplitWorld world(seed, GetParam());
    world.fill(true);
    const std::vector<SplitWorld::ComparedRow> rows = world.compared_rows();
    if (rows.empty()) {
      continue;
    }
    ++changed;
    const plan::Holding& one = rows[world.below(rows.size())].holding;
    world.row(one) = device::row_of(std::vector<double>(one.elements, std::nan("")), GetParam());
    const device::StepMath together = world.on_one_node();
    EXPECT_TRUE(std::isnan(together.norm));
    const StepOfNodes step = world.on_nodes();
    expect_norms(together, step);
    expect_findings(together, step.math);
  }
  EXPECT_GT(changed, 100);
}

TEST_P(NodeSumsOfWorlds, where_several_copies_differ_and_ranks_have_no_gradient_findings_are_those_of_one_node) {
  int divergent = 0;
  for (std::uint64_t seed = 0; seed < kSplitWorlds && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    SplitWorld world(seed, GetParam());
    world.fill(true);
    const std::vector<SplitWorld::ComparedRow> rows = world.compared_rows();
    for (std::uint64_t left = rows.empty() ? 0 : 2 + world.below(3); left > 0; --left) {
      const plan::Holding& one = rows[world.below(rows.size())].holding;
      const double value = world.below(4) == 0 ? std::nan("") : world.below(2) == 0 ? 7.5 : 2.5;
      world.row(one) = device::row_of(std::vector<double>(one.elements, value), GetParam());
    }
    if (seed % 2 == 0) {
      world.forget_some();
    }
    const device::StepMath together = world.on_one_node();
    expect_findings(together, world.on_nodes().math);
    divergent += together.divergence.empty() ? 0 : 1;
  }
  EXPECT_GT(divergent, 100);
}

INSTANTIATE_TEST_SUITE_P(Exponents, NodeSumsOfWorlds, testing::Values(1.0, 2.0, 3.5, kMaximumNorm));

TEST(NodeSumsHashes, hashes_without_sums_do_not_see_how_they_were_rounded) {
  int rounded = 0;
  for (std::uint64_t seed = 0; seed < kSplitWorlds && !testing::Test::HasFailure(); ++seed) {
    SplitWorld world(seed, 2);
    world.fill(true);
    for (const SplitWorld::ComparedRow& one : world.compared_rows()) {
      device::StatsRow& row = world.row(one.holding);
      if (row.scale == 1 && row.power_sum > 1e-6) {
        row.power_sum_low = std::nextafter(row.power_sum_low, 1);
        EXPECT_THAT(world.differing(world.on_nodes(device::HashSums::Out)), IsEmpty());
        EXPECT_THAT(world.differing(world.on_nodes(device::HashSums::In)), ElementsAre(one.number));
        ++rounded;
        break;
      }
    }
  }
  EXPECT_GT(rounded, 100);
}

}  // namespace
}  // namespace gradsync::engine
