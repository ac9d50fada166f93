// Lanes of several nodes pumped by one thread: every movement of a message is a step of its own, in an order that a
// seed decides, and bytes leave staging memory as late as they can.

#include "fakes/inline_host_lane.hpp"
#include "fakes/wire_network.hpp"
#include "unit/device/random_job.hpp"
#include "unit/device/transfer/node_world.hpp"

#include <gtest/gtest.h>

namespace gradsync::device {
namespace {

constexpr PlanId kPumpedPlan = 7;

class PumpedNodes {
  fakes::WireNetwork network_;  ///< first: the wires of lanes speak to it until they end

 public:
  PumpedNodes(const ShardedJob& job, const NodeOfRank& placed, const plan::TransferOptions& options, std::uint64_t seed)
      : network_(fakes::WireNetwork::Delivery::OneByOne, seed) {
    const std::size_t count = 1 + *std::ranges::max_element(placed);
    for (const std::vector<std::byte>& bytes : job.arenas) {
      arenas.emplace_back(bytes.size());
      std::memcpy(arenas.back().data(), bytes.data(), bytes.size());
    }
    std::vector<ConnectNodes> connects(count);
    connect(job, placed, options, connects);
    for (plan::TransferNode node = 0; node < count; ++node) {
      lanes.push_back(std::make_unique<fakes::InlineHostLane>(network_.maker()));
      for (std::size_t rank = 0; rank < placed.size(); ++rank) {
        if (placed[rank] == node) {
          lanes[node]->submit(MapBuffer{rank + 1, arenas[rank].descriptor(), arenas[rank].size_bytes()});
        }
      }
      lanes[node]->submit(LoadPlan{kPumpedPlan, layout_of_node(job.layout, placed, node, options)});
      connects[node].plan = kPumpedPlan;
      lanes[node]->submit(std::move(connects[node]));
    }
    reports.resize(count);
  }

  /// Until nothing moves any more.
  void pump() {
    do {
      for (std::size_t node = 0; node < lanes.size(); ++node) {
        LaneReport report;
        while (lanes[node]->wait_report(report)) {
          reports[node].push_back(std::move(report));
        }
      }
    } while (network_.deliver_one());
  }

  std::vector<ClientArena> arenas;
  std::vector<std::unique_ptr<fakes::InlineHostLane>> lanes;
  std::vector<std::vector<LaneReport>> reports;  ///< by node

 private:
  void connect(
      const ShardedJob& job,
      const NodeOfRank& placed,
      const plan::TransferOptions& options,
      std::vector<ConnectNodes>& connects
  ) {
    std::set<std::pair<plan::TransferNode, plan::TransferNode>> links;
    for (const plan::BucketTransfer& transfer : transfers_of(job.layout, placed, options)) {
      for (plan::TransferNode node = 0; node < connects.size(); ++node) {
        for (const plan::TransferMessage& message : plan::transfer_of_node(transfer, node).sends) {
          links.insert(std::minmax(node, message.peer));
        }
      }
    }
    for (const auto& [a, b] : links) {
      auto [of_a, of_b] = network_.connect(a, b);
      connects[a].connections.push_back(std::move(of_a));
      connects[b].connections.push_back(std::move(of_b));
    }
  }
};

TEST(OneByOne, random_jobs_end_with_the_same_bits_in_any_order_of_messages) {
  std::size_t moved = 0;
  for (std::uint64_t seed = 500; moved < 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomJob random(seed);
    ShardedJob job = random.make();
    if (job.layout.world_size < 2) {
      continue;
    }
    job.load();
    job.fill(random.random());
    NodeOfRank placed;
    for (std::uint32_t rank = 0; rank < job.layout.world_size; ++rank) {
      placed.push_back(rank % static_cast<std::uint32_t>(std::min<std::int64_t>(job.layout.world_size, 3)));
    }
    plan::TransferOptions options;
    options.block_bytes = std::uint64_t{256} << random.random()() % 6;
    options.staging_bytes = 16 * 1024;
    PumpedNodes nodes(job, placed, options, seed);
    nodes.pump();
    for (std::size_t node = 0; node < nodes.lanes.size(); ++node) {
      nodes.reports[node].clear();
      for (std::uint32_t bucket = 0; bucket < job.layout.buckets.size(); ++bucket) {
        nodes.lanes[node]->submit(ReduceBucket{kPumpedPlan, 1, bucket, {}, true, false});
      }
      nodes.lanes[node]->submit(NodeWorld::raw_finish(1));
    }
    nodes.pump();
    for (const std::vector<LaneReport>& reports : nodes.reports) {
      ASSERT_EQ(reports.size(), job.layout.buckets.size() + 1);
      ASSERT_TRUE(std::holds_alternative<Finished>(reports.back()));
    }
    const ShardedOracle oracle(job, {});
    for (std::size_t rank = 0; rank < placed.size(); ++rank) {
      const std::vector<std::byte>& expected = oracle.arenas[rank];
      ASSERT_EQ(std::memcmp(nodes.arenas[rank].data(), expected.data(), expected.size()), 0) << "rank " << rank;
    }
    ++moved;
  }
}

}  // namespace
}  // namespace gradsync::device
