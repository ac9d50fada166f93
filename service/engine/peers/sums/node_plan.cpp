#include "engine/peers/sums/node_plan.hpp"

#include "plan/interrupt.hpp"
#include "plan/memory.hpp"
#include "plan/transfer/node_transfer.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <set>
#include <vector>

namespace gradsync::engine {

namespace {

/// The lane's place of a box that is compared.
constexpr std::uint64_t kLaneBox = 16;

/// Finds the boxes of a tensor that this node holds and that a lower rank, on another node, holds too.
void add_elsewhere(
    const std::vector<device::StatsHolder>& holders,
    const std::vector<NodeNumber>& node_of_rank,
    NodeNumber node,
    std::uint32_t tensor,
    std::vector<device::StatsBox>& elsewhere
) {
  std::optional<std::uint32_t> box;
  bool owned = true;
  bool added = false;
  for (const device::StatsHolder& holder : holders) {
    if (box != holder.box) {
      box = holder.box;
      owned = node_of_rank[holder.rank] == node;
      added = false;
    }
    if (!owned && !added && node_of_rank[holder.rank] == node) {
      elsewhere.emplace_back(tensor, holder.box);
      added = true;
    }
  }
}

std::vector<std::vector<device::StatsBox>> classes_of(const Comparison& comparison, NodeNumber node) {
  std::vector<std::vector<device::StatsBox>> classes;
  for (const std::uint32_t number : comparison.of_node[node]) {
    classes.push_back(comparison.classes[number].boxes);
  }
  return classes;
}

}  // namespace

device::StatsPlan stats_plan_of_node(device::StatsPlan whole, const Comparison& comparison, NodeNumber node) {
  const std::vector<NodeNumber>& node_of_rank = comparison.node_of_rank;
  for (std::uint32_t index = 0; index < whole.tensors.size(); ++index) {
    plan::interruption_point();
    std::vector<device::StatsHolder>& holders = whole.tensors[index].holders;
    add_elsewhere(holders, node_of_rank, node, index, whole.elsewhere);
    std::erase_if(holders, [&](const device::StatsHolder& holder) { return node_of_rank[holder.rank] != node; });
  }
  std::erase_if(whole.ties, [&](const device::StatsTie& tie) { return whole.tensors[tie.copy].holders.empty(); });
  whole.classes = classes_of(comparison, node);
  return whole;
}

device::LaneNodes lane_nodes_of(const plan::Plan& plan, const Comparison& comparison, NodeNumber node) {
  plan::TransferOptions options;
  options.partial_sums = plan.options.partial_sums;
  device::LaneNodes nodes{node, comparison.node_of_rank, {}, options.staging_bytes, classes_of(comparison, node)};
  std::vector<plan::BucketTransfer>& transfers = nodes.transfers.own();
  transfers.reserve(plan.buckets.size());
  for (std::uint32_t bucket = 0; bucket < plan.buckets.size(); ++bucket) {
    plan::interruption_point();
    transfers.push_back(plan::make_bucket_transfer(plan, bucket, comparison.node_of_rank, options));
  }
  return nodes;
}

device::LaneNodes at_site(device::LaneNodes nodes, const Comparison& comparison, SiteNumber site) {
  nodes.node = site;
  nodes.classes = classes_of(comparison, site);
  return nodes;
}

std::uint64_t memory_of(const device::LaneNodes& nodes) {
  std::uint64_t bytes = nodes.node_of_rank.size() * sizeof(NodeNumber);
  std::uint64_t staged = 0;
  for (const plan::BucketTransfer& transfer : nodes.transfers) {
    plan::interruption_point();
    bytes += plan::memory_of(transfer);
    for (const plan::TransferBlock& block : transfer.blocks) {
      staged += plan::staging_bytes_of(transfer, block, nodes.node);
    }
  }
  for (const std::vector<device::StatsBox>& boxes : nodes.classes) {
    bytes += boxes.size() * (sizeof(device::StatsBox) + kLaneBox);
  }
  return bytes + std::min(staged, nodes.staging_bytes);
}

std::uint64_t memory_of(const Comparison& comparison) {
  std::uint64_t bytes = sizeof(Comparison) + comparison.node_of_rank.size() * sizeof(NodeNumber);
  for (const Comparison::Class& one : comparison.classes) {
    bytes += sizeof(one) + one.nodes.size() * (sizeof(NodeNumber) + sizeof(std::uint32_t)) +
             one.boxes.size() * sizeof(Comparison::Box);
  }
  return bytes;
}

std::vector<NodeNumber> linked_nodes_of(const device::LaneNodes& nodes) {
  std::set<NodeNumber> linked;
  for (const plan::BucketTransfer& transfer : nodes.transfers) {
    plan::interruption_point();
    const plan::NodeTransfer own = plan::transfer_of_node(transfer, nodes.node);
    for (const auto* const messages : {&own.sends, &own.receives}) {
      for (const plan::TransferMessage& message : *messages) {
        linked.insert(message.peer);
      }
    }
  }
  return {linked.begin(), linked.end()};
}

/// What is wanted twice is read once: another daemon says how much that is.
device::ReadRows rows_wanted_of(const Comparison& comparison, NodeNumber node, PeerCompare wanted) {
  const std::vector<std::uint32_t>& own = comparison.of_node[node];
  device::ReadRows read;
  std::ranges::sort(wanted.classes);
  for (std::uint32_t number = 0; number < own.size(); ++number) {
    if (std::ranges::binary_search(wanted.classes, own[number])) {
      read.classes.push_back(number);
    }
  }
  std::ranges::sort(wanted.boxes);
  wanted.boxes.erase(std::unique(wanted.boxes.begin(), wanted.boxes.end()), wanted.boxes.end());
  std::ranges::copy_if(wanted.boxes, std::back_inserter(read.boxes), [&](const Comparison::Box& box) {
    return std::ranges::any_of(own, [&](std::uint32_t number) {
      return std::ranges::binary_search(comparison.classes[number].boxes, box);
    });
  });
  return read;
}

}  // namespace gradsync::engine
