// Lanes of 2 to 8 nodes, each a worker process, whose sums travel by collectives of a library that has NCCL's
// interface, real sums and faults on demand: what they leave in memory, and what becomes of a step in which something
// fails.

#include "conformance/collective_world.hpp"
#include "conformance/exported_memory.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace gradsync::device {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class CollectiveLanes : public testing::TestWithParam<CollectiveNodes> {
 protected:
  static std::uint32_t nodes() { return GetParam().nodes; }

  static std::string last() { return std::to_string(nodes() - 1); }

  /// The fault, in the first operation of a step on a communicator of the first epoch.
  static std::string at_first(const std::string& fault) {
    return fault + " of=first operation=" + std::to_string(kWarmUps);
  }

  void make(const std::string& script, bool connects = true) {
    workers.emplace(script, GetParam().kind);
    job.fill(random);
    NodeWorldOptions options = collective_options(*workers);
    options.connects = connects;
    world.emplace(job, pairs(nodes()), options);
    world->write();
  }

  /// A node that aborts leaves its communicators, which the others may see before they abort themselves.
  static bool ended(const Failed& failed) { return failed.aborted || failed.wire_lost; }

  /// The reports of all reductions of a step, none of which is done, and then that of the abort.
  void expect_aborted(plan::TransferNode node, std::size_t reductions) {
    for (std::size_t at = 0; at < reductions; ++at) {
      EXPECT_TRUE(ended(world->expect<Failed>(node))) << "node " << node;
    }
    EXPECT_EQ(world->expect<Aborted>(node).tag, 1U) << "node " << node;
  }

  /// Behind its abort, without waiting for it.
  void unload_all() {
    for (plan::TransferNode node = 0; node < nodes(); ++node) {
      world->submit(node, UnloadPlan{kPlanOfNodes});
    }
  }

  void abort_all() {
    for (plan::TransferNode node = 0; node < nodes(); ++node) {
      world->submit(node, Abort{kPlanOfNodes, 1});
    }
  }

  /// A later epoch, with new communicators, is none the worse for what happened. The plan is being unloaded.
  void expect_the_next_epoch_works() {
    for (plan::TransferNode node = 0; node < nodes(); ++node) {
      world->expect<Unloaded>(node);
    }
    world->load_plan("second", true);
    world->connect(kPlanOfNodes);
    expect_collective_step(*world, 2);
  }

  std::mt19937_64 random{nodes()};
  ShardedJob job = collective_job(2 * nodes());
  std::optional<NcclWorkers> workers;
  std::optional<NodeWorld> world;
};

using enum CollectiveDeviceKind;

INSTANTIATE_TEST_SUITE_P(
    Nodes, CollectiveLanes, testing::ValuesIn(runnable({{2, Host}, {3, Host}, {5, Host}, {2, Gpu}, {3, Gpu}}))
);

/// Sums alone: many processes take their time on few cores.
class ManyCollectiveLanes : public CollectiveLanes {};

INSTANTIATE_TEST_SUITE_P(Nodes, ManyCollectiveLanes, testing::ValuesIn(runnable({{4, Host}, {8, Host}, {5, Gpu}})));

TEST_P(ManyCollectiveLanes, leave_in_every_byte_what_one_lane_leaves) {
  make("");
  expect_collective_step(*world, 1);
}

TEST_P(CollectiveLanes, leave_in_every_byte_what_one_lane_leaves) {
  make("");
  world->max_norm = 0.75;
  expect_collective_step(*world, 1);
  job.fill(random);
  expect_collective_step(*world, 2, {{0, 0}, {1, 1}, {2, 0}, {2, 1}});
}

TEST_P(CollectiveLanes, keep_their_communicators_for_the_next_plan_unless_it_is_to_be_fresh) {
  make("");
  expect_collective_step(*world, 1);
  for (const bool fresh : {false, true}) {
    unload_all();
    for (plan::TransferNode node = 0; node < nodes(); ++node) {
      world->expect<Unloaded>(node);
    }
    world->load_plan("first", fresh);
    EXPECT_EQ(world->nodes[0]->loaded->version, 22809);
    for (const CommunicatorOffer& offer : world->nodes[0]->loaded->offers) {
      EXPECT_EQ(offer.instance.has_value(), !fresh);
      EXPECT_EQ(offer.id.has_value(), fresh) << "node 0 is the first member";
    }
    world->connect(kPlanOfNodes);
    job.fill(random);
    expect_collective_step(*world, fresh ? 3 : 2);
  }
}

TEST_P(CollectiveLanes, a_node_that_never_comes_fails_nothing_by_itself_and_an_abort_ends_it) {
  make(at_first("never_comes rank=" + last()));
  world->reduce_all(1);
  abort_all();
  unload_all();
  for (plan::TransferNode node = 0; node < nodes(); ++node) {
    expect_aborted(node, job.layout.buckets.size());
  }
  expect_the_next_epoch_works();
}

TEST_P(CollectiveLanes, a_half_written_collective_is_never_taken_for_its_sum) {
  make(at_first("stops"));
  const std::vector<std::vector<std::byte>> before = world->memory();
  world->submit(0, world->reduction(0, 1, 0));
  for (plan::TransferNode node = 1; node < nodes(); ++node) {
    world->submit(node, world->reduction(node, 1, 0));
  }
  abort_all();
  unload_all();
  for (plan::TransferNode node = 0; node < nodes(); ++node) {
    expect_aborted(node, 1);
  }
  EXPECT_TRUE(world->memory() == before) << "a result was written";
  expect_the_next_epoch_works();
}

TEST_P(CollectiveLanes, an_error_that_nccl_says_later_fails_all_of_the_step_with_its_communicator) {
  make(at_first("error polls=3"));
  world->reduce_all(1);
  int said = 0;  // the first node that hears of it goes on, and others may see that in place of the error
  for (plan::TransferNode node = 0; node < nodes(); ++node) {
    for (std::size_t bucket = 0; bucket < job.layout.buckets.size(); ++bucket) {
      const Failed failed = world->expect<Failed>(node);
      EXPECT_TRUE(failed.wire_lost && !failed.aborted);
      EXPECT_THAT(failed.message, HasSubstr("communicator first:"));
      said += failed.message.find("network error") != std::string::npos ? 1 : 0;
    }
    world->submit(node, world->reduction(node, 1, 0));
    EXPECT_TRUE(world->expect<Failed>(node).wire_lost) << "nothing of the plan travels any more";
  }
  EXPECT_GT(said, 0);
  abort_all();
  unload_all();
  for (plan::TransferNode node = 0; node < nodes(); ++node) {
    expect_aborted(node, 0);
  }
  expect_the_next_epoch_works();
}

TEST_P(CollectiveLanes, a_worker_that_is_killed_fails_the_step_of_the_others) {
  make(at_first("stops rank=" + last()));
  const plan::TransferNode killed = nodes() - 1;
  world->reduce_all(1);
  ASSERT_EQ(::kill(workers->lanes[killed]->worker_pid(), SIGKILL), 0);
  for (plan::TransferNode node = 0; node < nodes(); ++node) {
    for (std::size_t bucket = 0; bucket < job.layout.buckets.size(); ++bucket) {
      const Failed failed = world->expect<Failed>(node);
      EXPECT_EQ(failed.lane_lost, node == killed) << failed.message;
      EXPECT_EQ(failed.wire_lost, node != killed) << failed.message;
    }
  }
  abort_all();
  for (plan::TransferNode node = 0; node < killed; ++node) {
    expect_aborted(node, 0);
  }
  EXPECT_TRUE(world->expect<Failed>(killed).lane_lost);
}

TEST_P(CollectiveLanes, an_abort_that_hangs_loses_the_worker_and_no_other) {
  make(at_first("never_comes") + "; abort_hangs of=first rank=" + last());
  world->reduce_all(1);
  abort_all();
  for (plan::TransferNode node = 0; node + 1 < nodes(); ++node) {
    expect_aborted(node, job.layout.buckets.size());
  }
  const plan::TransferNode hung = nodes() - 1;
  for (std::size_t bucket = 0; bucket < job.layout.buckets.size(); ++bucket) {
    EXPECT_TRUE(ended(world->expect<Failed>(hung))) << "what was under way is answered before";
  }
  const Failed lost = world->expect<Failed>(hung);
  EXPECT_TRUE(lost.lane_lost);
  EXPECT_THAT(lost.message, AllOf(HasSubstr("first:"), HasSubstr("did not abort it within")));
}

TEST_P(CollectiveLanes, buckets_in_another_order_are_refused_before_they_are_launched) {
  make("");
  world->submit(0, world->reduction(0, 1, 1));
  const Failed failed = world->expect<Failed>(0);
  EXPECT_THAT(failed.message, AllOf(HasSubstr("out of turn"), HasSubstr("bucket 1"), HasSubstr("bucket 0")));
  abort_all();
  unload_all();
  for (plan::TransferNode node = 0; node < nodes(); ++node) {
    expect_aborted(node, 0);
  }
  expect_the_next_epoch_works();
}

/// Memory that another process owns, perhaps of another job, on the GPU of node 0.
class CollectiveLanesOfGpus : public CollectiveLanes {
 protected:
  static constexpr std::uint64_t kBytes = 4096;
  static constexpr BufferId kBuffer = 99;

  [[nodiscard]] int mappings() const { return mappings_of(workers->lanes[0]->worker_pid()); }

  void map(BufferId buffer, const ExportedAllocation& memory, std::uint64_t number) {
    world->submit(0, MapBuffer{buffer, UniqueFd(), kBytes, memory.exported(number)});
    world->expect<Mapped>(0);
  }

  void unmap(BufferId buffer) {
    world->submit(0, UnmapBuffer{buffer});
    world->expect<Unmapped>(0);
  }

  /// Until the operation of node 0 is on its stream, memory that is released is closed at once.
  void release_while_an_operation_stands_still(const ExportedAllocation& memory) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    do {
      ASSERT_LT(std::chrono::steady_clock::now(), limit) << "it is closed";
      map(kBuffer, memory, 1);
      unmap(kBuffer);
    } while (mappings() == 0);
  }
};

INSTANTIATE_TEST_SUITE_P(Nodes, CollectiveLanesOfGpus, testing::ValuesIn(runnable({{2, Gpu}})));

/// CUDA waits for the operation before it closes memory, and meanwhile the lane would read no Abort.
TEST_P(CollectiveLanesOfGpus, close_memory_that_is_released_while_an_operation_stands_still_behind_its_abort) {
  make(at_first("never_comes"));
  const ExportedAllocation memory(kBytes);
  world->reduce_all(1);
  release_while_an_operation_stands_still(memory);
  abort_all();
  unload_all();
  for (plan::TransferNode node = 0; node < nodes(); ++node) {
    expect_aborted(node, job.layout.buckets.size());
  }
  EXPECT_EQ(mappings(), 0);
  expect_the_next_epoch_works();
}

TEST_P(CollectiveLanesOfGpus, map_memory_again_that_is_yet_to_be_closed) {
  make(at_first("never_comes"));
  const ExportedAllocation memory(kBytes);
  world->reduce_all(1);
  release_while_an_operation_stands_still(memory);
  map(kBuffer, memory, 2);
  abort_all();
  unload_all();
  for (plan::TransferNode node = 0; node < nodes(); ++node) {
    expect_aborted(node, job.layout.buckets.size());
  }
  EXPECT_EQ(mappings(), 1) << "the later buffer has it";
  expect_the_next_epoch_works();
  unmap(kBuffer);
  EXPECT_EQ(mappings(), 0);
}

TEST_P(CollectiveLanes, an_abort_ends_a_connection_that_is_waited_for) {
  make("never_joins of=first rank=" + last(), false);
  const Result<std::vector<CommunicatorId>> ids = world->agreed();
  ASSERT_TRUE(ids.has_value()) << ids.error().message;
  world->submit_connect(*ids);
  for (plan::TransferNode node = 0; node < nodes(); ++node) {
    world->submit(node, UnloadPlan{9});
    EXPECT_THAT(world->expect<Failed>(node).message, HasSubstr("plan 9 is not loaded"));  // the lane does other work
    EXPECT_EQ(world->nodes[node]->box.waiting(), 0U);
  }
  abort_all();
  unload_all();
  for (plan::TransferNode node = 0; node < nodes(); ++node) {
    const Failed failed = world->expect<Failed>(node);
    EXPECT_EQ(failed.tag, 0U);
    EXPECT_TRUE(ended(failed));
    expect_aborted(node, 0);
  }
  expect_the_next_epoch_works();
}

TEST_P(CollectiveLanes, end_while_a_node_that_never_comes_is_waited_for) {
  make(at_first("never_comes"));
  world->reduce_all(1);
  world->nodes[0]->lane.reset();
  for (std::size_t bucket = 0; bucket < job.layout.buckets.size(); ++bucket) {
    EXPECT_THAT(world->expect<Failed>(0).message, HasSubstr("waits for no other node"));
  }
}

TEST_P(CollectiveLanes, ids_that_are_not_those_of_the_plan_are_refused_and_the_right_ones_taken) {
  make("", false);
  const std::vector<CommunicatorId> ids = *world->agreed();
  world->submit(0, world->reduction(0, 1, 0));
  EXPECT_THAT(world->expect<Failed>(0).message, HasSubstr("not connected to other nodes yet"));
  world->submit(0, ConnectNodes{kPlanOfNodes, {}, {}});
  EXPECT_FALSE(world->expect<Failed>(0).message.empty());
  world->submit_connect(ids);
  for (plan::TransferNode node = 0; node < nodes(); ++node) {
    world->expect<Connected>(node);
  }
  world->submit(0, ConnectNodes{kPlanOfNodes, {}, ids});
  EXPECT_THAT(world->expect<Failed>(0).message, HasSubstr("they are given once"));
  expect_collective_step(*world, 2);
}

}  // namespace
}  // namespace gradsync::device
