#pragma once
// A small plan whose tensors lie on two nodes, and rows of its boxes.

#include "engine/peers/peer_message.hpp"
#include "plan/plan.hpp"

#include <cmath>
#include <utility>
#include <vector>

namespace gradsync::engine {

inline plan::PlannedTensor tensor_held_by(
    std::uint32_t counted_as, const std::vector<std::pair<std::uint32_t, std::uint32_t>>& rank_box
) {
  plan::PlannedTensor tensor;
  tensor.counted_as = counted_as;
  for (const auto& [rank, box] : rank_box) {
    tensor.holdings.push_back({rank, 0, box, 4});
  }
  return tensor;
}

/// Ranks 0 and 1 are on node 0, ranks 2 and 3 on node 1. Tensor 0 is replicated, 1 has a half on each node, and 2 is a
/// copy on rank 3 of the first half.
inline plan::Plan plan_of_copies() {
  plan::Plan plan;
  plan.options.data_path = plan::DataPath::Stats;
  plan.tensors.push_back(tensor_held_by(0, {{0, 0}, {1, 0}, {2, 0}, {3, 0}}));
  plan.tensors.push_back(tensor_held_by(1, {{0, 0}, {2, 1}}));
  plan.tensors.push_back(tensor_held_by(1, {{3, 0}}));
  plan.tensors[2].counted_boxes = {0};
  return plan;
}

inline const std::vector<NodeNumber> kNodesOfCopies{0, 0, 1, 1};

/// A sum of these ranks, which all get.
inline plan::RankSum sum_of_ranks(const std::vector<std::uint32_t>& ranks) {
  plan::RankSum sum;
  for (const std::uint32_t rank : ranks) {
    sum.sources.push_back({rank, 0});
  }
  sum.destinations = sum.sources;
  return sum;
}

/// Data path arena, with the same nodes. Tensor 0 is summed on each node by itself; 1 by ranks 0 and 2 and by ranks 1
/// and 3; 2 as a whole, and 3 by ranks of node 0 alone. The second part of tensor 4 is all on node 1, to which both
/// nodes bring something, its first one has no elements. Tensor 5 is as 0, the other way around.
inline plan::Plan plan_of_results() {
  plan::Plan plan;
  plan.world_size = 4;
  plan::RankSum third = sum_of_ranks({0, 2});
  third.destinations = {{2, 0}};
  plan::RankSum fourth = sum_of_ranks({1, 3});
  fourth.destinations = {{3, 0}};
  plan.sums = {
      {sum_of_ranks({0, 1}), sum_of_ranks({2, 3})},
      {sum_of_ranks({0, 2}), sum_of_ranks({1, 3})},
      {sum_of_ranks({0, 1, 2, 3})},
      {sum_of_ranks({0}), sum_of_ranks({1})},
      {third, fourth},
      {sum_of_ranks({2, 3}), sum_of_ranks({0, 1})},
  };
  for (std::uint32_t tensor = 0; tensor < 6; ++tensor) {
    plan.tensors.push_back(tensor_held_by(tensor, {{0, 0}, {1, 0}, {2, 0}, {3, 0}}));
    plan.tensors[tensor].parts = {{0, tensor, 4, 0, 4, {}}};
  }
  plan.tensors[3].holdings.resize(2);
  plan.tensors[4] = tensor_held_by(4, {{2, 1}, {3, 1}});
  plan.tensors[4].parts = {{0, 0, 0, 0, 0, {}}, {1, 4, 4, 0, 4, {}}};
  return plan;
}

/// Σ g² is `square`; 0: no gradient.
inline device::StatsRow stats_of(double square) {
  device::StatsRow row;
  if (square > 0) {
    row.stamp = 9;
    row.power_sum = square;
    row.maximum = std::sqrt(square);
  }
  return row;
}

inline PeerRows::Row row_of(std::uint32_t tensor, std::uint32_t box, std::int64_t rank, double square) {
  return {tensor, box, rank, stats_of(square)};
}

inline NodeCells cells_of(double square, std::uint64_t elements) {
  NodeCells cells;
  cells.whole.power_sum = {square, 0};
  cells.whole.maximum = std::sqrt(square);
  cells.counted_elements = elements;
  return cells;
}

}  // namespace gradsync::engine
