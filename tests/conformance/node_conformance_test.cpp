// A lane of one node of several brings the same cells, hashes and rows, whatever kind of lane it is; and gradients over
// nodes, where it exchanges them at all.

#include "conformance/alike.hpp"
#include "fakes/wire_network.hpp"
#include "unit/device/transfer/node_world.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace gradsync::device {
namespace {

using testing::HasSubstr;

/// The tables of a world whose last rank is on another node: a tensor in a part per rank, one that all hold, counted
/// elsewhere, and a tied copy of the first.
StatsPlan plan_of_a_node(std::uint32_t world) {
  StatsPlan plan;
  plan.world_size = world + 1;
  plan.tensors.resize(3);
  plan.clip_groups = 2;
  plan.layers = 1;
  plan.tensors[1].clip_group = 1;
  plan.tensors[1].layer = 0;
  plan.tensors[2].counted = false;
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    plan.rank_buffers.push_back(rank + 1);
    plan.tensors[0].holders.push_back({rank, 0, rank, 10});
    plan.tensors[1].holders.push_back({rank, 1, 0, 10});
    plan.tensors[2].holders.push_back({rank, 2, 0, 10});
  }
  plan.rank_buffers.push_back(0);
  plan.ties = {{2, 0, {0}}};
  plan.elsewhere = {{1, 0}};
  plan.classes = {{{0, 0}}, {{1, 0}}};
  return plan;
}

TEST_P(LaneConformance, a_node_of_several_brings_cells_hashes_and_rows) {
  const StatsPlan plan = plan_of_a_node(world());
  const auto host = expect_alike([&](LaneRun& run) {
    for (std::uint32_t rank = 0; rank < world(); ++rank) {
      std::vector<StatsRow> rows(3, {7, 1.5 + rank, 0, 1, 1.0, 0, 0, 0});
      rows[1].power_sum = 2.5;
      rows[1].nonfinite = rank;
      run.arenas.emplace_back(rows.size() * sizeof(StatsRow));
      std::memcpy(run.arenas[rank].data(), rows.data(), rows.size() * sizeof(StatsRow));
      run.ask(MapBuffer{rank + 1, run.arenas[rank].descriptor(), run.arenas[rank].size_bytes()});
    }
    run.ask(LoadStats{kPlan, plan});
    run.ask(ReadRows{kPlan, 1, {0}, {}});
    run.ask(FinishStep{kPlan, 1, 1.0, {{}, {}}, false, 7, false, HashSums::In});
    run.ask(FinishStep{kPlan, 1, 1.0, {{}}, false, 7, true, HashSums::In});
    run.ask(FinishStep{kPlan, 1, 1.0, {}, false, 7, true, HashSums::Out});
    run.ask(ReadRows{kPlan, 1, {1, 0}, {}});
    run.ask(ReadRows{kPlan, 1, {}, {{1, 0}, {0, 0}}});
    run.ask(ReadRows{kPlan, 1, {2}, {}});
    run.ask(ReadRows{kPlan, 1, {}, {{2, 0}}});
  });
  const std::size_t first = world() + 1;
  ASSERT_EQ(host->reports.size(), first + 8);
  for (const std::size_t refused : {0, 1, 2, 6, 7}) {
    EXPECT_TRUE(std::holds_alternative<Failed>(host->reports[first + refused])) << refused;
  }
  const auto& finished = std::get<Finished>(host->reports[first + 3]);
  ASSERT_NE(finished.raw, nullptr);
  EXPECT_EQ(finished.raw->cells.counted_elements, 10 * world());
  EXPECT_EQ(finished.raw->class_hashes.size(), 2U);
  EXPECT_EQ(std::get<RowsRead>(host->reports[first + 4]).box_hashes.size(), 2U);
  EXPECT_EQ(std::get<RowsRead>(host->reports[first + 5]).rows.size(), 2 * world() + 1);
}

TEST_P(LaneConformance, cells_of_gradients_in_arenas_are_refused_and_the_step_goes_on) {
  const ShardedJob job = mixed_job(world());
  const auto host = expect_alike([&](LaneRun& run) {
    run.load(job);
    reduce_all(run, 1);
    FinishStep finish = finish_of(kPlan, 1, {strict_rule(0.5), strict_rule(0.5)}, false);
    finish.raw = true;
    run.ask(std::move(finish));
    run.ask(finish_of(kPlan, 1, {strict_rule(0.5), strict_rule(0.5)}));
  });
  EXPECT_THAT(
      std::get<Failed>(host->reports[host->reports.size() - 2]).message,
      HasSubstr("a raw finish is of plans over several nodes")
  );
  EXPECT_TRUE(std::holds_alternative<Finished>(host->reports.back()));
}

/// A step of two nodes, whose connections are sockets.
std::vector<std::unique_ptr<LaneRun>> step_over_nodes(LaneKind kind, const ShardedJob& job, const NodeOfRank& placed) {
  fakes::WireNetwork network;
  auto connected = network.connect(0, 1);
  NodeConnection* const connections[] = {&connected.first, &connected.second};
  std::vector<std::unique_ptr<LaneRun>> runs;
  for (plan::TransferNode node = 0; node < 2; ++node) {
    LaneRun& run = *runs.emplace_back(std::make_unique<LaneRun>(kind));
    for (const std::vector<std::byte>& bytes : job.arenas) {
      run.arenas.emplace_back(bytes.size());
    }
    run.write(job);
    for (std::size_t rank = 0; rank < placed.size(); ++rank) {
      if (placed[rank] == node) {
        run.ask(MapBuffer{rank + 1, run.arenas[rank].descriptor(), run.arenas[rank].size_bytes()});
      }
    }
    run.ask(LoadPlan{kPlan, layout_of_node(job.layout, placed, node)});
    ConnectNodes connect{kPlan, {}};
    connect.connections.push_back(std::move(*connections[node]));
    run.ask(std::move(connect));
  }
  for (std::uint32_t bucket = 0; bucket < job.layout.buckets.size(); ++bucket) {
    for (const auto& run : runs) {
      run->lane().submit(ReduceBucket{kPlan, 1, bucket, {}, true, false});
    }
  }
  for (plan::TransferNode node = 0; node < 2; ++node) {
    LaneRun* const run = runs[node].get();
    for (std::size_t bucket = 0; bucket < job.layout.buckets.size(); ++bucket) {
      run->next();
    }
    run->ask(FinishStep{kPlan, 1, 1.0, {}, false, 0, true, HashSums::In});
    const std::vector<std::vector<StatsBox>> classes = layout_of_node(job.layout, placed, node).nodes.classes;
    for (std::uint32_t number = 0; number < classes.size(); ++number) {
      run->ask(ReadRows{kPlan, 1, {number}, {}});
      run->ask(ReadRows{kPlan, 1, {}, classes[number]});
    }
    plan::ClipOutcome outcome;
    outcome.multiply = true;
    outcome.multiplier = 0.5;
    run->ask(ScaleGradients{kPlan, 1, std::vector(job.layout.clip_groups, outcome), {}, {}});
  }
  return runs;
}

/// A tensor that rank 0 and the other ranks hold as copies, and one that all of them sum.
ShardedJob copied_job(std::uint32_t world) {
  ShardedJob job(world);
  job.add_bucket(plan::DType::Float32, 2.0);
  const std::vector<std::uint32_t> ranks = all_ranks(world);
  job.add(replicated({20'000}, {{0}, {ranks.begin() + 1, ranks.end()}}));
  job.add(replicated({9}, {ranks}));
  job.load();
  std::mt19937_64 random(world);
  job.fill(random);
  return job;
}

TEST_P(LaneConformance, nodes_exchange_gradients_and_compare_copies_behind_processes_too) {
  NodeOfRank placed(world() + 1, 1);
  placed[0] = 0;
  for (const ShardedJob& job : {mixed_job(world() + 1), copied_job(world() + 1)}) {
    const auto host = step_over_nodes(LaneKind::Host, job, placed);
    const auto process = step_over_nodes(LaneKind::Process, job, placed);
    for (plan::TransferNode node = 0; node < 2; ++node) {
      EXPECT_TRUE(std::holds_alternative<Scaled>(host[node]->reports.back()));
      const auto is_read = [](const LaneReport& report) { return std::holds_alternative<RowsRead>(report); };
      EXPECT_EQ(std::ranges::count_if(host[node]->reports, is_read), job.layout.tensors.size() == 2 ? 2 : 0);
      expect_equal(*host[node], *process[node], "node " + std::to_string(node));
    }
  }
}

TEST(NodeLanes, of_gpus_exchange_no_gradients_over_connections_and_say_what_does) {
  for (const LaneKind kind : all_kinds()) {
    if (kind == LaneKind::Gpu || kind == LaneKind::GpuProcess) {
      LaneRun run(kind);
      const LaneReport& report = run.ask(LoadPlan{kPlan, layout_of_node(mixed_job(2).layout, {0, 1}, 0)});
      EXPECT_THAT(std::get<Failed>(report).message, HasSubstr("exchanges no gradients with other nodes over connec"));
      EXPECT_THAT(std::get<Failed>(report).hint, HasSubstr("on GPUs of several nodes travel by NCCL"));
    }
  }
}

}  // namespace
}  // namespace gradsync::device
