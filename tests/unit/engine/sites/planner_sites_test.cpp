// Sites take the place of nodes: what the planner makes for the GPUs of a node is what it would make if each of them
// were a node of its own, wherever ranks lie.

#include "engine/peers/peer_message.hpp"
#include "engine/peers/roster_by_rank.hpp"
#include "engine/plan/planner.hpp"
#include "unit/engine/harness.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace gradsync::engine {
namespace {

constexpr std::int64_t kDp = 3;
constexpr std::int64_t kTp = 2;
constexpr std::int64_t kRanks = kDp * kTp;
constexpr device::LaneId kLaneOfSite = 20;  ///< and those above it: by site

plan::TensorDeclaration of_model(
    const std::string& name, std::int64_t numel, plan::PlacementKind dp, plan::PlacementKind tp
) {
  plan::TensorDeclaration tensor = Harness::tensor(name, numel);
  tensor.mesh = "model";
  tensor.placements = {{{"dp"}, std::move(dp)}, {{"tp"}, std::move(tp)}};
  return tensor;
}

/// What a model has that is cut by tensor parallelism, replicated there, and sharded by its optimizer.
plan::RankDeclaration model() {
  const plan::Partial mean{plan::ReduceOp::Mean, std::nullopt};
  const plan::Partial sum{plan::ReduceOp::Sum, std::nullopt};
  const plan::Partial scattered{plan::ReduceOp::Sum, plan::Shard{0}};
  plan::TensorDeclaration cut = of_model("cut", 96, mean, plan::Shard{0});
  cut.local_shape = {96 / kTp};
  return Harness::declaration(
      {std::move(cut),
       of_model("norms", 40, mean, plan::Replicate{}),
       of_model("both", 70, sum, sum),
       of_model("optimizer", 60, scattered, plan::Replicate{}),
       of_model("local", 20, plan::Replicate{}, sum),
       of_model("nowhere", 12, plan::Replicate{}, plan::Replicate{})}
  );
}

/// Nodes by lowest rank, and the devices of their ranks.
struct Placed {
  std::vector<NodeNumber> node_of_rank;
  std::vector<std::uint32_t> device_of_rank;
  std::shared_ptr<const RosterByRank> roster;
};

Placed placed(std::mt19937& random) {
  Placed made;
  std::map<std::uint32_t, NodeNumber> numbers;
  std::vector<RosterNode> nodes;
  for (std::int64_t rank = 0; rank < kRanks; ++rank) {
    const auto [node, fresh] =
        numbers.try_emplace(static_cast<std::uint32_t>(random() % 3), static_cast<NodeNumber>(numbers.size()));
    if (fresh) {
      nodes.emplace_back().by_content = {{"content", {}, std::nullopt}};
    }
    made.node_of_rank.push_back(node->second);
    made.device_of_rank.push_back(static_cast<std::uint32_t>(random() % 2));
    RosterNode& entry = nodes[node->second];
    entry.by_content[0].ranks.emplace_back(rank, 1);
    entry.devices.push_back(made.device_of_rank.back());
  }
  SharedList<RosterNode> roster;
  roster.own() = std::move(nodes);
  made.roster = roster_by_rank(roster, kRanks, 0);
  return made;
}

PlanRequest request_of_model() {
  static const auto kModel = std::make_shared<const plan::RankDeclaration>(model());
  PlanRequest request;
  request.ticket = 1;
  request.by_rank = std::vector<std::shared_ptr<const plan::RankDeclaration>>(kRanks, kModel);
  request.weights = std::vector<std::shared_ptr<const WeightFingerprints>>(kRanks);
  request.meshes = {{"default", {{"dp", kRanks}}, {}}, {"model", {{"dp", kDp}, {"tp", kTp}}, {}}};
  request.world_size = kRanks;
  request.sizes = {256, 512};
  return request;
}

std::unique_ptr<PreparedPlan> plan_for(PlanRequest request) {
  PlanOutcome outcome = run_planner(request);
  EXPECT_TRUE(outcome.plan) << (outcome.plan ? "" : outcome.plan.error().message);
  return outcome.plan ? std::move(*outcome.plan) : nullptr;
}

/// The node's plan, each of its sites on a lane.
std::unique_ptr<PreparedPlan> plan_of_node(const Placed& where, NodeNumber node) {
  PlanRequest request = request_of_model();
  request.node_of_rank = where.node_of_rank;
  request.site_of_rank = where.roster->site_of_rank;
  request.node = node;
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    const bool here = where.node_of_rank[rank] == node;
    request.lane_of_rank.push_back(here ? kLaneOfSite + where.roster->site_of_rank[rank] : kLaneOfSite);
  }
  return plan_for(std::move(request));
}

/// The plan of the site as a node of one lane.
std::unique_ptr<PreparedPlan> plan_as_node(const Placed& where, SiteNumber site) {
  PlanRequest request = request_of_model();
  request.node_of_rank = where.roster->site_of_rank;
  request.node = site;
  request.lane_of_rank.assign(kRanks, kLaneOfSite + site);
  return plan_for(std::move(request));
}

void expect_same_transfer(const plan::BucketTransfer& a, const plan::BucketTransfer& b) {
  EXPECT_EQ(a.bucket, b.bucket);
  EXPECT_EQ(std::tuple(a.result, a.partial, a.sum), std::tuple(b.result, b.partial, b.sum));
  EXPECT_EQ(a.blocks, b.blocks);
  EXPECT_EQ(a.pieces, b.pieces);
  ASSERT_EQ(a.streams.size(), b.streams.size());
  for (std::size_t stream = 0; stream < a.streams.size(); ++stream) {
    EXPECT_EQ(a.streams[stream].sources, b.streams[stream].sources);
    EXPECT_EQ(a.streams[stream].destinations, b.streams[stream].destinations);
    EXPECT_EQ(a.streams[stream].elements, b.streams[stream].elements);
  }
}

void expect_same_nodes(const device::LaneNodes& a, const device::LaneNodes& b) {
  EXPECT_EQ(a.node, b.node);
  EXPECT_EQ(a.node_of_rank, b.node_of_rank);
  EXPECT_EQ(a.staging_bytes, b.staging_bytes);
  EXPECT_EQ(a.classes, b.classes);
  ASSERT_EQ(a.transfers.size(), b.transfers.size());
  for (std::size_t bucket = 0; bucket < a.transfers.size(); ++bucket) {
    expect_same_transfer(a.transfers[bucket], b.transfers[bucket]);
  }
  ASSERT_TRUE(a.communicators && b.communicators);
  ASSERT_EQ(a.communicators->needed.size(), b.communicators->needed.size());
  for (std::size_t one = 0; one < a.communicators->needed.size(); ++one) {
    const device::LaneCommunicator& first = a.communicators->needed[one];
    const device::LaneCommunicator& second = b.communicators->needed[one];
    EXPECT_EQ(first.nodes, second.nodes);
    EXPECT_EQ(first.spec.axes, second.spec.axes);
    EXPECT_EQ(first.spec.ranks, second.spec.ranks);
    EXPECT_EQ(first.spec.own, second.spec.own);
  }
}

void expect_same_comparison(const Comparison& a, const Comparison& b) {
  EXPECT_EQ(a.node_of_rank, b.node_of_rank);
  EXPECT_EQ(a.of_node, b.of_node);
  EXPECT_EQ(std::pair(a.groups, a.layers), std::pair(b.groups, b.layers));
  ASSERT_EQ(a.classes.size(), b.classes.size());
  for (std::size_t number = 0; number < a.classes.size(); ++number) {
    EXPECT_EQ(a.classes[number].nodes, b.classes[number].nodes);
    EXPECT_EQ(a.classes[number].owner, b.classes[number].owner);
    EXPECT_EQ(a.classes[number].boxes, b.classes[number].boxes);
  }
}

TEST(PlannerSites, what_travels_and_is_compared_is_that_of_nodes_with_one_gpu_each) {
  std::mt19937 random(20'290);
  std::size_t several = 0;
  for (int round = 0; round < 40; ++round) {
    const Placed where = placed(random);
    ASSERT_TRUE(where.roster);
    const auto nodes = *std::ranges::max_element(where.node_of_rank) + 1;
    if (nodes < 2) {
      continue;  // a node that is alone has no sites
    }
    for (NodeNumber node = 0; node < nodes; ++node) {
      SCOPED_TRACE(testing::Message() << "round " << round << ", node " << node);
      const auto of_node = plan_of_node(where, node);
      ASSERT_TRUE(of_node);
      several += of_node->shares.size() > 1 ? 1 : 0;
      ASSERT_EQ(of_node->other_sites.size() + 1, of_node->shares.size());
      for (std::size_t share = 0; share < of_node->shares.size(); ++share) {
        const SiteNumber site = of_node->shares[share].site;
        EXPECT_EQ(of_node->shares[share].lane, kLaneOfSite + site);
        EXPECT_EQ(where.roster->sites[site].node, node);
        EXPECT_EQ(where.roster->sites[site].index, share);
        const auto alone = plan_as_node(where, site);
        ASSERT_TRUE(alone);
        EXPECT_EQ(of_node->plan->digest, alone->plan->digest);
        EXPECT_EQ(of_node->shares[share].buckets, alone->shares[0].buckets);
        const device::LaneNodes& first = std::get<device::LanePlan>(of_node->layout).nodes;
        expect_same_nodes(
            share == 0 ? first : of_node->other_sites[share - 1], std::get<device::LanePlan>(alone->layout).nodes
        );
        expect_same_comparison(*of_node->comparison, *alone->comparison);
      }
    }
  }
  EXPECT_GT(several, 20u) << "nodes have two sites often enough";
}

TEST(PlannerSites, nodes_whose_ranks_have_one_gpu_each_plan_as_before) {
  Placed where;
  where.node_of_rank = {0, 1, 0, 1, 2, 2};
  RosterByRank roster;
  roster.site_of_rank = where.node_of_rank;
  where.roster = std::make_shared<const RosterByRank>(roster);
  for (NodeNumber node = 0; node < 3; ++node) {
    const auto with = plan_of_node(where, node);
    const auto without = plan_as_node(where, node);
    ASSERT_TRUE(with && without);
    EXPECT_TRUE(with->other_sites.empty());
    EXPECT_EQ(with->memory_bytes, without->memory_bytes);
    expect_same_nodes(
        std::get<device::LanePlan>(with->layout).nodes, std::get<device::LanePlan>(without->layout).nodes
    );
  }
}

}  // namespace
}  // namespace gradsync::engine
