// Reductions that are under way: aborts, faults of wires, little staging memory, several plans, and what is refused.

#include "unit/device/transfer/node_world.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <random>
#include <thread>

namespace gradsync::device {
namespace {

using testing::HasSubstr;

constexpr PlanId kPlan = NodeWorld::kPlan;

std::vector<std::uint32_t> ranks_below(std::uint32_t world) {
  std::vector<std::uint32_t> ranks(world);
  std::iota(ranks.begin(), ranks.end(), 0U);
  return ranks;
}

/// Two ranks on each node, three buckets in three formats: small and large tensors, and one that is scattered.
ShardedJob job_of(std::uint32_t nodes, std::uint64_t elements = 30'000) {
  const std::uint32_t world = 2 * nodes;
  const std::vector<std::uint32_t> ranks = ranks_below(world);
  ShardedJob job(world);
  job.add_bucket(plan::DType::Float32, 2.0);
  job.add_bucket(plan::DType::BFloat16, 4.0);
  job.add_bucket(plan::DType::Float64, 1.0);
  for (std::uint32_t bucket = 0; bucket < 3; ++bucket) {
    for (const std::uint64_t count : {std::uint64_t{1}, std::uint64_t{37}, elements}) {
      ShardedTensor tensor = replicated({count}, {ranks});
      tensor.bucket = bucket;
      tensor.clip_group = bucket % 2;
      job.add(tensor);
    }
  }
  job.add(scattered({world, 33}, 0, Index(world, 1), Index(ranks.begin(), ranks.end())));
  job.load();
  std::mt19937_64 random(nodes);
  job.fill(random);
  return job;
}

NodeOfRank two_on_each(std::uint32_t nodes) {
  NodeOfRank node_of_rank;
  for (std::uint32_t rank = 0; rank < 2 * nodes; ++rank) {
    node_of_rank.push_back(rank / 2);
  }
  return node_of_rank;
}

void expect_step(NodeWorld& world, Tag tag) {
  ShardedOracle oracle(world.job, {});
  const NodesSaid said = world.step(tag);
  ASSERT_TRUE(said.failed.empty());
  EXPECT_NEAR(said.norm, oracle.norm(), 1e-12 * oracle.norm());
  EXPECT_EQ(said.cells.counted_elements, oracle.counted_elements);
  oracle.multiply(said.outcomes);
  EXPECT_TRUE(world.memory() == oracle.arenas);
}

class TransferOverNodes : public testing::TestWithParam<std::tuple<std::uint32_t, bool>> {
 protected:
  static std::uint32_t nodes() { return std::get<0>(GetParam()); }

  static NodeWorldOptions options() {
    NodeWorldOptions options;
    options.sockets = std::get<1>(GetParam());
    return options;
  }
};

INSTANTIATE_TEST_SUITE_P(
    Nodes, TransferOverNodes, testing::Combine(testing::Values(2U, 3U, 4U, 5U, 8U), testing::Bool())
);

TEST_P(TransferOverNodes, steps_follow_each_other) {
  ShardedJob job = job_of(nodes());
  NodeWorld world(job, two_on_each(nodes()), options());
  world.max_norm = 0.5;
  for (Tag tag = 1; tag <= 3; ++tag) {
    expect_step(world, tag);
  }
}

TEST_P(TransferOverNodes, staging_memory_for_a_block_or_two_is_enough) {
  ShardedJob job = job_of(nodes());
  NodeWorldOptions little = options();
  little.transfer.block_bytes = 2048;
  little.transfer.staging_bytes = 16 * 2048;
  NodeWorld world(job, two_on_each(nodes()), little);
  expect_step(world, 1);
}

/// The reports of a node until `Aborted`. Every command has one, and none comes behind.
void expect_aborted(NodeWorld& world, plan::TransferNode node, std::size_t commands, bool by_other) {
  std::size_t reports = 0;
  while (true) {
    const LaneReport report = world.nodes[node]->box.take();
    if (std::holds_alternative<Aborted>(report)) {
      break;
    }
    ++reports;
    if (const auto* failed = std::get_if<Failed>(&report)) {
      EXPECT_TRUE(
          failed->aborted || (by_other && failed->wire_lost) ||
          failed->message.find("does not hold") != std::string::npos
      ) << failed->message;
      ASSERT_NE(failed->message, "no report");
    }
  }
  EXPECT_EQ(reports, commands) << "node " << node;
}

TEST_P(TransferOverNodes, an_abort_at_any_moment_ends_all_of_the_attempt_and_nothing_writes_behind_it) {
  ShardedJob job = job_of(nodes(), 100'000);
  std::mt19937_64 random(nodes());
  for (int round = 0; round < 8; ++round) {
    NodeWorld world(job, two_on_each(nodes()), options());
    world.write();
    world.reduce_all(1);
    for (plan::TransferNode node = 0; node < nodes(); ++node) {
      world.submit(node, NodeWorld::raw_finish(1));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    for (plan::TransferNode node = 0; node < nodes(); ++node) {
      world.submit(node, Abort{kPlan, 1});
    }
    for (plan::TransferNode node = 0; node < nodes(); ++node) {
      expect_aborted(world, node, job.layout.buckets.size() + 1, true);
    }
    const auto after = world.memory();
    for (plan::TransferNode node = 0; node < nodes(); ++node) {
      world.submit(node, world.reduction(node, 2, 0));
      const Failed failed = world.expect<Failed>(node);
      EXPECT_TRUE(failed.wire_lost && !failed.aborted) << failed.message;
      EXPECT_EQ(failed.tag, 2U);
      world.submit(node, UnloadPlan{kPlan});
      world.expect<Unloaded>(node);
    }
    EXPECT_TRUE(world.memory() == after) << "something was written behind the Aborted";
    if (HasFailure()) {
      return;
    }
  }
}

class BrokenLinks : public testing::TestWithParam<std::uint32_t> {
 protected:
  static std::uint32_t nodes() { return GetParam(); }
};

INSTANTIATE_TEST_SUITE_P(Nodes, BrokenLinks, testing::Values(2U, 3U, 8U));

TEST_P(BrokenLinks, fail_what_is_under_way_and_all_that_follows) {
  ShardedJob job = job_of(nodes(), 100'000);
  std::mt19937_64 random(nodes());
  for (int round = 0; round < 8; ++round) {
    NodeWorld world(job, two_on_each(nodes()));
    world.write();
    world.reduce_all(1);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
    const auto broken = static_cast<plan::TransferNode>(1 + random() % (nodes() - 1));
    world.network.cut(0, broken);
    for (const plan::TransferNode node : {plan::TransferNode{0}, broken}) {
      bool lost = false;
      for (std::size_t bucket = 0; bucket < job.layout.buckets.size(); ++bucket) {
        const LaneReport report = world.nodes[node]->box.take();
        if (const auto* failed = std::get_if<Failed>(&report)) {
          lost = true;
          EXPECT_TRUE(failed->wire_lost) << failed->message;
          EXPECT_EQ(failed->message, "the connection was cut");
          EXPECT_EQ(failed->node, node == 0 ? broken : 0);
        } else {
          EXPECT_FALSE(lost) << "a bucket was reduced behind one that was lost";
        }
      }
      world.submit(node, world.reduction(node, 2, 0));
      EXPECT_TRUE(world.expect<Failed>(node).wire_lost);
    }
    for (plan::TransferNode node = 0; node < nodes(); ++node) {
      world.submit(node, Abort{kPlan, 2});
    }
  }
}

TEST(TransferRuns, a_lane_that_ends_fails_what_waits_for_others) {
  ShardedJob job = job_of(2);
  NodeWorld world(job, two_on_each(2));
  world.submit(0, world.reduction(0, 1, 0));
  world.submit(0, NodeWorld::raw_finish(1));
  world.nodes[0]->lane.reset();
  const Failed reduction = world.expect<Failed>(0);
  EXPECT_THAT(reduction.message, HasSubstr("waits for no other node"));
  EXPECT_TRUE(reduction.wire_lost);
  EXPECT_THAT(world.expect<Failed>(0).message, HasSubstr("bucket 0 does not hold the sums"));
}

TEST(TransferRuns, the_end_of_another_lane_over_sockets_is_a_fault_with_its_node) {
  ShardedJob job = job_of(3);
  NodeWorldOptions options;
  options.sockets = true;
  NodeWorld world(job, two_on_each(3), options);
  world.submit(0, world.reduction(0, 1, 0));
  world.nodes[2]->lane.reset();
  const Failed failed = world.expect<Failed>(0);
  EXPECT_TRUE(failed.wire_lost && !failed.aborted);
  EXPECT_EQ(failed.node, 2U);
  EXPECT_FALSE(failed.message.empty());
}

TEST(TransferRuns, an_abort_is_heard_by_the_others) {
  for (const bool sockets : {false, true}) {
    ShardedJob job = job_of(2);
    NodeWorldOptions options;
    options.sockets = sockets;
    NodeWorld world(job, two_on_each(2), options);
    world.submit(1, world.reduction(1, 1, 0));
    world.submit(0, Abort{kPlan, 1});
    world.expect<Aborted>(0);
    const Failed failed = world.expect<Failed>(1);
    EXPECT_TRUE(failed.wire_lost && !failed.aborted) << failed.message;
    EXPECT_EQ(failed.node, 0U);
  }
}

TEST(TransferRuns, an_older_attempt_that_is_aborted_late_breaks_nothing) {
  ShardedJob job = job_of(2);
  NodeWorld world(job, two_on_each(2));
  expect_step(world, 5);
  for (plan::TransferNode node = 0; node < 2; ++node) {
    world.submit(node, Abort{kPlan, 4});
    world.expect<Aborted>(node);
  }
  expect_step(world, 6);
}

TEST(TransferRuns, other_plans_and_other_buckets_go_on_while_one_waits_for_its_peer) {
  ShardedJob job = job_of(2);
  NodeWorld world(job, two_on_each(2));
  ShardedJob alone(1);
  alone.add_bucket(plan::DType::Float32, 1.0);
  alone.add(replicated({100}, {{0}}));
  alone.load();
  ClientArena arena(alone.arenas[0].size());
  LanePlan layout = alone.layout;
  layout.rank_buffers = {99};
  world.write();
  world.submit(0, world.reduction(0, 1, 0));
  world.submit(0, NodeWorld::raw_finish(1));  // waits for the other node, and nobody waits for it
  world.submit(0, MapBuffer{99, arena.descriptor(), arena.size_bytes()});
  world.expect<Mapped>(0);
  world.submit(0, LoadPlan{8, layout});
  world.expect<Loaded>(0);
  world.submit(0, ReduceBucket{8, 1, 0, {}, false, false});
  world.expect<Reduced>(0);
  world.submit(0, UnmapBuffer{1});  // of a rank whose gradients are being reduced: it waits
  world.submit(0, UnloadPlan{8});
  world.expect<Unloaded>(0);
  world.submit(0, Abort{kPlan, 1});
  EXPECT_TRUE(world.expect<Failed>(0).aborted);
  EXPECT_TRUE(world.expect<Failed>(0).aborted);
  EXPECT_EQ(world.expect<Aborted>(0).plan, kPlan);
  EXPECT_EQ(world.expect<Unmapped>(0).buffer, 1U);
}

/// Two plans of the same ranks, whose buckets the nodes begin in different orders.
TEST(TransferRuns, plans_that_cross_wait_for_each_other_on_no_node) {
  ShardedJob job = job_of(2, 200'000);
  NodeWorldOptions options;
  options.transfer.block_bytes = 4096;
  options.transfer.staging_bytes = 64 * 1024;
  NodeWorld world(job, two_on_each(2), options);
  std::vector<ClientArena> second;
  for (std::size_t rank = 0; rank < 4; ++rank) {
    second.emplace_back(job.arenas[rank].size());
    std::memcpy(second.back().data(), job.arenas[rank].data(), job.arenas[rank].size());
  }
  constexpr PlanId kOther = 8;
  auto [of_a, of_b] = world.network.connect(0, 1);
  NodeConnection* connections[] = {&of_a, &of_b};
  for (plan::TransferNode node = 0; node < 2; ++node) {
    for (const std::size_t rank : {2 * node, 2 * node + 1}) {
      world.submit(node, MapBuffer{100 + rank, second[rank].descriptor(), second[rank].size_bytes()});
      world.expect<Mapped>(node);
    }
    world.submit(node, LoadPlan{kOther, layout_of_node(job.layout, world.node_of_rank, node, options.transfer, 100)});
    world.expect<Loaded>(node);
    ConnectNodes connect{kOther, {}};
    connect.connections.push_back(std::move(*connections[node]));
    world.submit(node, std::move(connect));
    world.expect<Connected>(node);
  }
  world.write();
  for (std::uint32_t bucket = 0; bucket < 3; ++bucket) {
    for (plan::TransferNode node = 0; node < 2; ++node) {
      for (const PlanId plan : {node == 0 ? kPlan : kOther, node == 0 ? kOther : kPlan}) {
        world.submit(node, ReduceBucket{plan, 1, bucket, {}, false, false});
      }
    }
  }
  for (plan::TransferNode node = 0; node < 2; ++node) {
    std::map<PlanId, std::uint32_t> next;
    for (int report = 0; report < 6; ++report) {
      const auto reduced = world.expect<Reduced>(node);
      EXPECT_EQ(reduced.bucket, next[reduced.plan]++);
    }
  }
  const ShardedOracle oracle(job, {});
  EXPECT_TRUE(world.memory() == oracle.arenas);
  for (std::size_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(std::memcmp(second[rank].data(), oracle.arenas[rank].data(), oracle.arenas[rank].size()), 0);
  }
}

TEST(TransferRuns, connections_are_those_of_the_transfers_and_are_given_once) {
  ShardedJob job = job_of(2);
  NodeWorld world(job, two_on_each(2));
  const auto refused = [&](ConnectNodes command) {
    world.submit(0, std::move(command));
    return world.expect<Failed>(0).message;
  };
  EXPECT_THAT(refused({kPlan, {}}), HasSubstr("they are given once"));
  EXPECT_THAT(refused({99, {}}), HasSubstr("plan 99 is not loaded"));
  LanePlan layout = layout_of_node(job.layout, world.node_of_rank, 0);
  world.submit(0, LoadPlan{9, layout});
  world.expect<Loaded>(0);
  EXPECT_THAT(refused({9, {}}), HasSubstr("exchanges messages with nodes 1"));
  ConnectNodes closed{9, {}};
  closed.connections.push_back({1, UniqueFd(), UniqueFd()});
  EXPECT_THAT(refused(std::move(closed)), HasSubstr("lacks a descriptor"));
  ReduceBucket reduce = world.reduction(0, 1, 0);
  reduce.plan = 9;
  world.submit(0, reduce);
  const Failed failed = world.expect<Failed>(0);
  EXPECT_THAT(failed.message, HasSubstr("not connected"));
  EXPECT_FALSE(failed.wire_lost);
}

TEST(TransferRuns, a_bucket_that_is_made_and_not_reported_yet_is_not_made_again) {
  ShardedJob job(4);
  job.add_bucket(plan::DType::Float32, 1.0);
  job.add_bucket(plan::DType::Float32, 1.0);
  job.add(replicated({100}, {{0, 1, 2, 3}}));
  ShardedTensor stays = replicated({50}, {{0, 1}, {2, 3}});
  stays.bucket = 1;
  job.add(stays);
  job.load();
  std::mt19937_64 random(9);
  job.fill(random);
  NodeWorld world(job, two_on_each(2));
  world.write();
  for (const std::uint32_t bucket : {0U, 1U, 1U, 0U}) {
    world.submit(0, world.reduction(0, 1, bucket));
  }
  for (const std::uint32_t bucket : {0U, 1U}) {
    world.submit(1, world.reduction(1, 1, bucket));
  }
  EXPECT_EQ(world.expect<Reduced>(0).bucket, 0U);
  EXPECT_EQ(world.expect<Reduced>(0).bucket, 1U);
  for (int again = 0; again < 2; ++again) {
    EXPECT_THAT(world.expect<Failed>(0).message, testing::AnyOf(HasSubstr("being reduced"), HasSubstr("was already")));
  }
  const ShardedOracle oracle(job, {});
  world.expect<Reduced>(1);
  world.expect<Reduced>(1);
  EXPECT_TRUE(world.memory() == oracle.arenas);
}

TEST(TransferRuns, only_a_raw_finish_ends_a_step_and_nothing_is_done_twice) {
  ShardedJob job = job_of(2);
  NodeWorld world(job, two_on_each(2));
  const NodesSaid said = world.measure(1);
  const auto refused = [&](LaneCommand command) {
    world.submit(0, std::move(command));
    return world.expect<Failed>(0).message;
  };
  FinishStep decided = NodeWorld::raw_finish(1);
  decided.raw = false;
  decided.rules.resize(2);
  EXPECT_THAT(refused(decided), HasSubstr("on other nodes"));
  EXPECT_THAT(refused(MeasureBuckets{kPlan, 1, {0}}), HasSubstr("over several nodes"));
  EXPECT_THAT(refused(world.reduction(0, 1, 0)), HasSubstr("already reduced"));
  EXPECT_THAT(refused(world.reduction(0, 1, 77)), HasSubstr("bucket 77 is not one"));
  ReduceBucket stranger = world.reduction(0, 2, 0);
  stranger.unused = {{0, 3}};
  EXPECT_THAT(refused(stranger), HasSubstr("unused tensor 0 of rank 3"));
  EXPECT_THAT(refused(ScaleGradients{kPlan, 1, said.outcomes, {}, {2, 1}}), HasSubstr("ascend"));
  world.submit(0, ScaleGradients{kPlan, 1, said.outcomes, {}, {}});
  world.expect<Scaled>(0);
  EXPECT_THAT(refused(ScaleGradients{kPlan, 1, said.outcomes, {}, {}}), HasSubstr("already finished"));
}

}  // namespace
}  // namespace gradsync::device
