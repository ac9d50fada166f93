#pragma once
// What the coordinator of a job does with the hashes and rows of copies on several nodes, in the plainest way: the
// tests of lanes have no coordinator.

#include "device/lane.hpp"
#include "device/math/norm_sum.hpp"
#include "device/stats/box_hash.hpp"
#include "device/stats/stats_row.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

namespace gradsync::device {

/// Parts that are compared by the same nodes and have one owner, which counts them.
struct NodeClass {
  std::set<plan::TransferNode> nodes;
  plan::TransferNode owner = 0;
  std::vector<StatsBox> boxes;
};

inline std::vector<NodeClass> classes_of(const LanePlan& layout, const std::vector<plan::TransferNode>& node_of_rank) {
  std::vector<NodeClass> classes;
  for (std::uint32_t tensor = 0; tensor < layout.tensors.size(); ++tensor) {
    for (std::uint32_t number = 0; number < layout.tensors[tensor].parts; ++number) {
      const LanePart& part = layout.parts[layout.tensors[tensor].first_part + number];
      const std::vector<LaneSum>& sums = layout.sums[part.sums];
      std::set<plan::TransferNode> sources;
      NodeClass found;
      for (const LaneSum& sum : sums) {
        for (const LaneMember& member : sum.sources) {
          sources.insert(node_of_rank[member.rank]);
        }
        for (const LaneMember& member : sum.destinations) {
          found.nodes.insert(node_of_rank[member.rank]);
        }
      }
      if (part.elements == 0 || sums.size() < 2 || sources.size() < 2) {
        continue;
      }
      found.owner = node_of_rank[sums[0].destinations[0].rank];
      for (const LaneMember& member : sums[0].destinations) {
        found.owner = std::min(found.owner, node_of_rank[member.rank]);
      }
      const auto same = std::ranges::find_if(classes, [&](const NodeClass& other) {
        return other.nodes == found.nodes && other.owner == found.owner;
      });
      (same == classes.end() ? classes.emplace_back(found) : *same).boxes.emplace_back(tensor, number);
    }
  }
  return classes;
}

/// The rounds of one step. `World` is a NodeWorld.
template <typename World>
class NodesCompared {
 public:
  using Ranks = std::map<std::uint32_t, std::set<std::int64_t>>;  ///< by tensor

  NodesCompared(World& world, Tag tag)
      : world_(world), tag_(tag), classes_(classes_of(world.job.layout, world.node_of_rank)) {}

  /// `hashes`: by node, what its lane said of its classes.
  void compare(const std::vector<std::vector<std::uint64_t>>& hashes) {
    std::vector<std::uint32_t> next(hashes.size(), 0);
    for (const NodeClass& one : classes_) {
      std::set<std::uint64_t> said;
      std::map<plan::TransferNode, std::uint32_t> numbers;
      for (const plan::TransferNode node : one.nodes) {
        numbers[node] = next[node]++;
        said.insert(hashes.at(node).at(numbers[node]));
      }
      if (said.size() > 1 || is_uncounted(*said.begin())) {
        read(one, numbers);
      }
    }
  }

  Ranks divergence;
  Ranks missing;
  std::vector<HeldRow> uncounted;                           ///< the rows that count
  std::set<std::pair<std::uint32_t, std::int64_t>> judged;  ///< tensors and ranks
  int boxes_read = 0;

 private:
  void read(const NodeClass& one, const std::map<plan::TransferNode, std::uint32_t>& numbers) {
    std::map<plan::TransferNode, std::vector<std::uint64_t>> hashes;
    for (const auto& [node, number] : numbers) {
      world_.submit(node, ReadRows{World::kPlan, tag_, {number}, {}});
      hashes[node] = world_.template expect<RowsRead>(node).box_hashes;
    }
    for (std::size_t box = 0; box < one.boxes.size(); ++box) {
      std::set<std::uint64_t> said;
      for (const auto& [node, of_boxes] : hashes) {
        said.insert(of_boxes.at(box));
      }
      const bool alone = said.size() == 1 && *said.begin() != 0 && is_uncounted(*said.begin());
      if (said.size() > 1 || alone) {
        judge(one, one.boxes[box], is_uncounted(hashes.at(one.owner)[box]));
      }
    }
  }

  void judge(const NodeClass& one, StatsBox box, bool is_to_be_counted) {
    ++boxes_read;
    std::map<std::int64_t, HeldRow> rows;
    for (const plan::TransferNode node : one.nodes) {
      world_.submit(node, ReadRows{World::kPlan, tag_, {}, {box}});
      for (const HeldRow& row : world_.template expect<RowsRead>(node).rows) {
        rows[row.rank] = row;
        judged.emplace(row.tensor, row.rank);
      }
    }
    const LanePlan& layout = world_.job.layout;
    const HeldRow* counted = nullptr;
    for (const LaneSum& sum : layout.sums[layout.parts[layout.tensors[box.first].first_part + box.second].sums]) {
      const HeldRow& row = rows.at(sum.destinations[0].rank);
      counted = counted == nullptr && row.row.stamp != 0 ? &row : counted;
    }
    if (counted == nullptr) {
      return;
    }
    if (is_to_be_counted) {
      uncounted.push_back(*counted);
    }
    for (const auto& [rank, row] : rows) {
      if (row.row.stamp == 0) {
        missing[box.first].insert(rank);
      }
      if (row.row.stamp == 0 || !agree(row.row, counted->row, layout.norm_type)) {
        divergence[box.first].insert(rank);
      }
    }
  }

  World& world_;
  Tag tag_;
  std::vector<NodeClass> classes_;
};

}  // namespace gradsync::device
