// What nodes find in gradients that travel, and the order of their additions.

#include "unit/device/transfer/node_world.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace gradsync::device {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

const NodeOfRank kTwoNodes = {0, 0, 1, 1};

ShardedJob job_of(plan::DType dtype, double p, const std::vector<ShardedTensor>& tensors) {
  ShardedJob job(4, p);
  job.add_bucket(dtype, 4.0);
  for (const ShardedTensor& tensor : tensors) {
    job.add(tensor);
  }
  job.load();
  std::mt19937_64 random(1);
  job.fill(random);
  return job;
}

void fill(ShardedJob& job, double value) {
  job.for_each_source([&](std::uint32_t rank, std::uint32_t memory, std::uint64_t elements) {
    for (std::uint64_t i = 0; i < elements; ++i) {
      job.set(rank, memory, i, value);
    }
  });
}

TEST(NodeFindings, ranks_are_added_in_order_on_each_node_and_then_nodes_are) {
  ShardedJob job(6);
  job.add_bucket(plan::DType::Float32, 3.0);
  job.add(replicated({500}, {{0, 1, 2, 3, 4, 5}}));
  job.load();
  const NodeOfRank node_of_rank = {2, 0, 1, 0, 1, 2};
  std::mt19937_64 random(3);
  std::vector<std::vector<float>> inputs(6, std::vector<float>(500));
  for (std::uint32_t rank = 0; rank < 6; ++rank) {
    for (std::uint64_t i = 0; i < 500; ++i) {
      inputs[rank][i] = std::ldexp(static_cast<float>(random() % 20'000'000) - 1e7F, static_cast<int>(random() % 20));
      job.set(rank, 0, i, inputs[rank][i]);
    }
  }
  for (const plan::PartialSums sums : {plan::PartialSums::Exact, plan::PartialSums::BFloat16}) {
    NodeWorldOptions options;
    options.transfer.block_bytes = 512;
    options.transfer.partial_sums = sums;
    NodeWorld world(job, node_of_rank, options);
    const std::vector<plan::BucketTransfer> programs = transfers_of(job.layout, node_of_rank, options.transfer);
    world.step(1);
    for (const plan::TransferBlock& block : programs[0].blocks) {
      const plan::TransferPiece& piece = programs[0].pieces_of(block)[0];
      for (std::uint64_t i = piece.first; i < piece.first + piece.elements; ++i) {
        float partials[] = {inputs[1][i] + inputs[3][i], inputs[2][i] + inputs[4][i], inputs[0][i] + inputs[5][i]};
        for (plan::TransferNode node = 0; node < 3 && sums == plan::PartialSums::BFloat16; ++node) {
          if (node != block.owner) {
            partials[node] = arithmetic::bfloat16_to_float(arithmetic::float_to_bfloat16(partials[node]));
          }
        }
        const float expected = (partials[0] + partials[1] + partials[2]) / 3.0F;
        for (std::uint32_t rank = 0; rank < 6; ++rank) {
          ASSERT_EQ(world.arenas[rank].at<float>(job.arena(rank).output[0])[i], expected)
              << i << " of owner " << block.owner << " on rank " << rank;
        }
      }
    }
  }
}

TEST(NodeFindings, a_node_that_brings_nothing_changes_no_sign) {
  for (const plan::DType dtype : {plan::DType::Float32, plan::DType::BFloat16, plan::DType::Float64}) {
    ShardedJob job = job_of(dtype, 2, {replicated({100}, {{0, 1, 2, 3}})});
    fill(job, -0.0);
    NodeWorld world(job, kTwoNodes);
    EXPECT_TRUE(world.step(1, {{0, 2}, {0, 3}}).failed.empty());
    const auto memory = world.memory();
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      for (std::uint64_t i = 0; i < 100; ++i) {
        ASSERT_TRUE(std::signbit(job.read(memory[rank], job.arena(rank).output[0], 0, i))) << "rank " << rank;
      }
    }
  }
}

TEST(NodeFindings, values_that_are_not_finite_are_found_with_their_ranks_and_counted_once) {
  for (const plan::DType dtype :
       {plan::DType::Float32, plan::DType::Float64, plan::DType::BFloat16, plan::DType::Float16}) {
    ShardedJob job = job_of(dtype, 2, {replicated({40'000}, {{0, 1, 2, 3}}), replicated({10}, {{0, 1}, {2, 3}})});
    job.set(1, 0, 5, kNaN);
    job.set(1, 0, 39'999, kInfinity);
    job.set(3, 0, 39'999, -kInfinity);
    NodeWorld world(job, kTwoNodes);
    const NodesSaid said = world.measure(1);
    EXPECT_TRUE(std::isnan(said.norm));
    EXPECT_THAT(said.nonfinite, ElementsAre(Pair(0U, 2U)));
    EXPECT_THAT(said.nonfinite_of_ranks, ElementsAre(Pair(Pair(0U, 1), 2U), Pair(Pair(0U, 3), 1U)));
    job.set(1, 0, 5, 1);
    job.set(1, 0, 39'999, 1);
    job.set(3, 0, 39'999, 1);
    const NodesSaid next = world.measure(2);
    EXPECT_TRUE(std::isfinite(next.norm));
    EXPECT_THAT(next.nonfinite, IsEmpty());
  }
}

TEST(NodeFindings, a_value_of_a_replica_that_the_norm_does_not_count_makes_it_infinite) {
  // The first sum is of nodes 0 and 1, the second of ranks on both nodes too, and alone has the value.
  ShardedJob job = job_of(plan::DType::Float32, 2, {replicated({100}, {{0, 2}, {1, 3}})});
  job.set(3, 0, 50, kInfinity);
  NodeWorld world(job, kTwoNodes);
  const NodesSaid said = world.measure(1);
  EXPECT_TRUE(std::isinf(said.norm));
  EXPECT_EQ(said.cells.counted_elements, 100U);
  EXPECT_THAT(said.nonfinite_of_ranks, ElementsAre(Pair(Pair(0U, 3), 1U)));
}

TEST(NodeFindings, sums_whose_powers_leave_the_doubles_are_taken_again_where_they_are) {
  for (const double value : {1e200, 1e-200}) {
    for (const double p : {1.0, 2.0, 3.5}) {
      ShardedJob job =
          job_of(plan::DType::Float64, p, {replicated({1000}, {{0, 1, 2, 3}}), replicated({10}, {{0}, {1}, {2}, {3}})});
      fill(job, value);
      NodeWorld world(job, kTwoNodes);
      world.max_norm = value;
      const NodesSaid said = world.step(1);
      const double expected = value * std::pow(1000 + 10 * std::pow(0.25, p), 1 / p);
      EXPECT_NEAR(said.norm / expected, 1, 1e-12) << value << " p " << p;
      EXPECT_TRUE(said.outcomes[0].multiply);
      EXPECT_NEAR(world.arenas[3].at<double>(job.arena(3).output[0])[999], value / expected * value, value * 1e-9);
    }
  }
}

TEST(NodeFindings, only_what_is_counted_is_taken_again) {
  // The first sum travels, two of its copies stay on a node each; and a part that nobody used.
  ShardedTensor empty;
  empty.shape = {2, 32};
  empty.parts = {
      {slice({2, 32}, 0, {1, 1}, 0), {sum_to({0, 2}, {0, 2})}},
      {slice({2, 32}, 0, {1, 1}, 1), {sum_to({1, 3}, {1, 3})}}};
  ShardedJob job = job_of(plan::DType::Float64, 2, {replicated({100}, {{0, 2}, {1}, {3}}), empty});
  fill(job, 1e200);
  NodeWorld world(job, kTwoNodes);
  const NodesSaid said = world.measure(1, {{1, 1}, {1, 3}});
  ASSERT_TRUE(said.failed.empty());
  EXPECT_EQ(said.cells.counted_elements, 132U);
  EXPECT_NEAR(said.norm / (0.5e200 * std::sqrt(132.0)), 1, 1e-12);
}

TEST(NodeFindings, the_largest_value_is_the_norm_without_a_power) {
  ShardedJob job = job_of(plan::DType::Float16, kInfinity, {replicated({3000}, {{0, 1, 2, 3}})});
  fill(job, 1);
  job.set(2, 0, 2999, -41);
  NodeWorld world(job, kTwoNodes);
  EXPECT_EQ(world.measure(1).norm, 9.5);
}

TEST(NodeFindings, copies_on_one_node_that_differ_are_found_there) {
  ShardedJob job =
      job_of(plan::DType::Float32, 2, {replicated({64}, {{0, 2}, {1, 3}}), replicated({64}, {{0, 2}, {1, 3}})});
  fill(job, 1);
  job.set(3, 0, 63, 2);
  NodeWorld world(job, kTwoNodes);
  const NodesSaid said = world.measure(1);
  EXPECT_THAT(said.divergence, ElementsAre(Pair(0U, ElementsAre(1, 3))));
  EXPECT_EQ(said.boxes_read, 1) << "which of them most ranks have is known to the nodes together";
}

TEST(NodeFindings, a_sum_that_nobody_contributed_to_is_zero_where_another_of_the_tensor_is_not) {
  // Two parts, each summed by all ranks of one node or of both.
  ShardedTensor tensor;
  tensor.shape = {4, 8};
  tensor.parts = {
      {slice({4, 8}, 0, {2, 2}, 0), {sum_to({0, 2}, {0, 2})}}, {slice({4, 8}, 0, {2, 2}, 1), {sum_to({1, 3}, {1, 3})}}};
  ShardedJob job = job_of(plan::DType::Float32, 2, {tensor});
  fill(job, 4);
  NodeWorld world(job, kTwoNodes);
  const NodesSaid said = world.step(1, {{0, 1}, {0, 3}});
  EXPECT_THAT(said.absent, IsEmpty());
  EXPECT_THAT(said.missing, ElementsAre(Pair(0U, ElementsAre(1, 3))));
  EXPECT_EQ(said.cells.counted_elements, 16U);
  const ShardedOracle oracle(job, {{0, 1}, {0, 3}});
  EXPECT_TRUE(world.memory() == oracle.arenas);
  EXPECT_THAT(world.step(2, {{0, 0}, {0, 1}, {0, 2}, {0, 3}}).absent, ElementsAre(0U));
  EXPECT_TRUE(world.memory() == job.arenas) << "what nobody used is neither read nor written";
}

TEST(NodeFindings, a_part_whose_first_sum_has_no_gradient_is_counted_by_the_next_one) {
  // On both nodes, on one that other nodes bring to, and on a node for each sum.
  ShardedTensor cut;
  cut.shape = {4, 16};
  cut.parts = {
      {slice({4, 16}, 0, {2, 2}, 0), {sum_to({0, 2}, {0}), sum_to({1, 3}, {1})}},
      {slice({4, 16}, 0, {2, 2}, 1), {sum_to({0, 2}, {2}), sum_to({1, 3}, {3})}}};
  for (const double p : {1.0, 2.0, 3.5, kInfinity}) {
    ShardedJob job = job_of(
        plan::DType::Float32,
        p,
        {replicated({10}, {{0, 1, 2, 3}}),
         replicated({64}, {{0, 2}, {1, 3}}),
         cut,
         replicated({20'000}, {{0, 1}, {2, 3}})}
    );
    NodeWorld world(job, kTwoNodes);
    for (const UnusedSet& unused :
         {UnusedSet{{1, 0}, {1, 2}}, UnusedSet{{2, 0}, {2, 2}}, UnusedSet{{3, 0}, {3, 1}}, UnusedSet{}}) {
      SCOPED_TRACE(testing::Message() << "p " << p << ", tensor " << (unused.empty() ? 0 : unused.begin()->first));
      const ShardedOracle oracle(job, unused);
      const NodesSaid said = world.measure(world.next_tag(), unused);
      ASSERT_THAT(said.failed, IsEmpty());
      EXPECT_NEAR(said.norm, oracle.norm(), 1e-12 * oracle.norm());
      EXPECT_EQ(said.cells.counted_elements, oracle.counted_elements);
      EXPECT_EQ(said.uncounted, unused.empty() ? 0 : unused.begin()->first == 2 ? 2 : 1);
      EXPECT_EQ(said.missing, oracle.missing);
      EXPECT_EQ(said.divergence, oracle.divergence);
    }
  }
}

TEST(NodeFindings, what_is_counted_from_its_rows_may_leave_the_doubles) {
  ShardedJob job = job_of(plan::DType::Float64, 2, {replicated({1000}, {{0, 1}, {2, 3}})});
  fill(job, 1e200);
  NodeWorld world(job, kTwoNodes);
  EXPECT_NEAR(world.measure(1, {{0, 0}, {0, 1}}).norm / (0.5e200 * std::sqrt(1000.0)), 1, 1e-12);
  job.set(3, 0, 500, kNaN);
  const NodesSaid said = world.measure(2, {{0, 0}, {0, 1}});
  EXPECT_TRUE(std::isnan(said.norm));
  EXPECT_THAT(said.nonfinite_of_ranks, ElementsAre(Pair(Pair(0U, 3), 1U)));
}

class ComparedNodes : public testing::TestWithParam<plan::TransferNode> {
 protected:
  /// Two ranks on each node, which are summed; the nodes hold copies. Beside it a tensor that travels.
  ComparedNodes() : job(2 * GetParam()) {
    job.add_bucket(plan::DType::BFloat16, 2.0);
    std::vector<std::vector<std::uint32_t>> groups;
    std::vector<std::uint32_t> all;
    for (std::uint32_t node = 0; node < GetParam(); ++node) {
      groups.push_back({2 * node, 2 * node + 1});
      all.insert(all.end(), groups.back().begin(), groups.back().end());
      nodes.insert(nodes.end(), 2, node);
    }
    job.add(replicated({40'000}, groups));
    job.add(replicated({77}, {all}));
    job.add(replicated({5}, groups));
    job.load();
    std::mt19937_64 random(7);
    job.fill(random);
    for (std::uint32_t rank = 2; rank < 2 * GetParam(); ++rank) {
      for (const std::uint32_t memory : {0U, 2U}) {
        for (std::uint64_t i = 0; i < (memory == 0 ? 40'000 : 5); ++i) {
          job.set(rank, memory, i, job.input(rank % 2, memory, i));
        }
      }
    }
  }

  ShardedJob job;
  NodeOfRank nodes;
};

INSTANTIATE_TEST_SUITE_P(Nodes, ComparedNodes, testing::Values(2, 3, 4, 5, 8));

TEST_P(ComparedNodes, equal_copies_need_no_rows) {
  NodeWorld world(job, nodes);
  for (const bool compares : {true, false, true}) {
    world.compares = compares;
    const NodesSaid said = world.measure(world.next_tag());
    EXPECT_EQ(said.boxes_read, 0);
    EXPECT_THAT(said.divergence, IsEmpty());
  }
}

TEST_P(ComparedNodes, a_copy_that_differs_in_one_element_is_named_with_the_ranks_of_its_node) {
  NodeWorld world(job, nodes);
  for (const std::uint32_t node : {0U, GetParam() / 2, GetParam() - 1}) {
    for (const std::uint64_t element : {0U, 16'384U, 39'999U}) {
      const double value = job.input(2 * node, 0, element);
      job.set(2 * node, 0, element, value + 1);
      const NodesSaid said = world.measure(world.next_tag());
      EXPECT_EQ(said.boxes_read, 1);
      std::set<std::int64_t> ranks{2 * node, 2 * node + 1};
      if (node == 0) {  // it is the one that counts
        ranks.clear();
        for (std::int64_t rank = 2; rank < 2 * GetParam(); ++rank) {
          ranks.insert(rank);
        }
      }
      EXPECT_THAT(said.divergence, ElementsAre(Pair(0U, ranks)));
      world.compares = false;
      EXPECT_THAT(world.measure(world.next_tag()).divergence, IsEmpty()) << "bits are compared where it is asked for";
      world.compares = true;
      job.set(2 * node, 0, element, value);
      EXPECT_THAT(world.measure(world.next_tag()).divergence, IsEmpty()) << "the next step is right";
    }
  }
}

TEST_P(ComparedNodes, a_node_that_compares_while_others_do_not_finds_nothing_that_is_not_there) {
  NodeWorld world(job, nodes);
  world.write();
  for (plan::TransferNode node = 0; node < GetParam(); ++node) {
    world.submit(node, world.reduction(node, 1, 0, {}, node == 1));
    world.submit(node, NodeWorld::raw_finish(1));
  }
  std::vector<std::vector<std::uint64_t>> hashes;
  for (plan::TransferNode node = 0; node < GetParam(); ++node) {
    world.expect<Reduced>(node);
    hashes.push_back(world.expect<Finished>(node).raw->class_hashes);
  }
  EXPECT_NE(hashes[0], hashes[1]);
  NodesCompared<NodeWorld> compared(world, 1);
  compared.compare(hashes);
  EXPECT_EQ(compared.boxes_read, 2);
  EXPECT_THAT(compared.divergence, IsEmpty());
  EXPECT_THAT(compared.uncounted, IsEmpty());
}

TEST_P(ComparedNodes, what_is_wanted_has_to_be_there) {
  NodeWorld world(job, nodes);
  const auto refused = [&](ReadRows command) {
    command.plan = NodeWorld::kPlan;
    world.submit(0, std::move(command));
    return world.expect<Failed>(0).message;
  };
  EXPECT_THAT(refused({0, 1, {0}, {}}), HasSubstr("had no raw finish"));
  EXPECT_THAT(world.measure(1).failed, IsEmpty());
  EXPECT_THAT(refused({0, 2, {0}, {}}), HasSubstr("attempt 2 had no raw finish"));
  EXPECT_THAT(refused({0, 1, {1}, {}}), HasSubstr("class 1 is wanted, and the plan has 1"));
  EXPECT_THAT(refused({0, 1, {}, {}}), HasSubstr("one of the two"));
  EXPECT_THAT(refused({0, 1, {}, {{1, 0}}}), HasSubstr("part 0 of tensor 1 is compared with no other node"));
}

TEST(NodeFindings, a_failed_group_is_set_to_zero_and_a_skipped_step_is_left_alone) {
  ShardedJob job = job_of(plan::DType::BFloat16, 2, {replicated({70}, {{0, 1, 2, 3}})});
  NodeWorld world(job, kTwoNodes);
  ShardedOracle oracle(job, {});
  NodesSaid said = world.measure(1);
  plan::ClipOutcome skip;
  skip.action = plan::StepAction::Skip;
  skip.multiply = true;
  skip.multiplier = 0.5;
  for (plan::TransferNode node = 0; node < 2; ++node) {
    world.submit(node, ScaleGradients{NodeWorld::kPlan, 1, {skip}, {}, {}});
    world.expect<Scaled>(node);
  }
  EXPECT_TRUE(world.memory() == oracle.arenas);
  plan::ClipOutcome zero;
  zero.action = plan::StepAction::Zero;
  said = world.measure(2);
  for (plan::TransferNode node = 0; node < 2; ++node) {
    world.submit(node, ScaleGradients{NodeWorld::kPlan, 2, {zero}, {}, {}});
    world.expect<Scaled>(node);
  }
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    const auto* values = world.arenas[rank].at<std::uint16_t>(job.arena(rank).output[0]);
    EXPECT_TRUE(std::all_of(values, values + 70, [](std::uint16_t bits) { return bits == 0; }));
  }
}

}  // namespace
}  // namespace gradsync::device
