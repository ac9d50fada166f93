#pragma once
// Random plans of data path `stats` whose ranks lie on several nodes, with the tables of all ranks, and a step of them:
// on one lane that has every table, and on a lane per node that has those of its ranks.

#include "device/loaded/loaded_stats.hpp"
#include "device/step/node_rows.hpp"
#include "device/step/stats_finish.hpp"
#include "engine/peers/sums/comparison.hpp"
#include "engine/peers/sums/copies_of_nodes.hpp"
#include "engine/peers/sums/node_plan.hpp"
#include "engine/peers/sums/node_sums.hpp"
#include "engine/plan/lane_plan.hpp"
#include "plan/plan.hpp"
#include "unit/device/stats/stats_fixture.hpp"

#include <algorithm>
#include <atomic>
#include <deque>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace gradsync::engine {

/// What all nodes make of a step together, as the coordinator does.
struct StepOfNodes {
  std::vector<NodeCells> cells;                          ///< by node
  std::vector<std::vector<std::uint64_t>> class_hashes;  ///< by node
  device::StepMath math;                                 ///< what every node decides
  bool compared = false;                                 ///< a second round was needed
};

class SplitWorld {
 public:
  SplitWorld(std::uint64_t seed, double norm_type) : random_(seed) {
    plan_.options.data_path = plan::DataPath::Stats;
    plan_.options.norm_type = norm_type;
    make_nodes();
    plan_.clip_groups.resize(1 + below(3));
    plan_.norm_groups.resize(1);
    rows_.resize(node_of_rank_.size());
    const std::uint64_t tensors = 3 + below(8);
    while (plan_.tensors.size() < tensors) {
      add_tensor();
    }
    for (std::vector<device::StatsRow>& table : rows_) {
      table.resize(std::max<std::size_t>(table.size(), 1));
    }
    comparison_ = comparison_of(plan_, node_of_rank_);
  }

  std::uint64_t below(std::uint64_t end) { return random_() % end; }

  [[nodiscard]] const plan::Plan& plan() const { return plan_; }

  [[nodiscard]] const Comparison& comparison() const { return comparison_; }

  [[nodiscard]] std::size_t nodes() const { return 1 + *std::ranges::max_element(node_of_rank_); }

  /// Gives all copies of a box one gradient, or none; some have values that are not finite.
  void fill(bool finite) {
    std::map<Comparison::Box, device::StatsRow> of_box;
    for (std::uint32_t tensor = 0; tensor < plan_.tensors.size(); ++tensor) {
      const bool absent = below(6) == 0;
      for (const plan::Holding& holding : plan_.tensors[tensor].holdings) {
        const Comparison::Box box = counted_box(plan_, {tensor, holding.box});
        if (holding.elements == 0) {
          continue;
        }
        if (!of_box.contains(box)) {
          of_box[box] = absent || below(9) == 0 ? device::StatsRow{} : some_row(holding.elements, finite);
        }
        row(holding) = of_box[box];
      }
    }
  }

  /// Takes the gradients of some ranks away.
  void forget_some() {
    for (const plan::PlannedTensor& tensor : plan_.tensors) {
      const std::uint64_t chance = 1 + below(3);
      for (const plan::Holding& holding : tensor.holdings) {
        if (below(chance + 1) == 0) {
          row(holding) = {};
        }
      }
    }
  }

  device::StatsRow& row(const plan::Holding& holding) { return rows_[holding.rank][holding.row]; }

  /// All that are compared between nodes and have a gradient, with their nodes and classes.
  struct ComparedRow {
    plan::Holding holding;
    NodeNumber node = 0;
    std::uint32_t number = 0;
  };

  std::vector<ComparedRow> compared_rows() {
    std::vector<ComparedRow> found;
    for (std::uint32_t tensor = 0; tensor < plan_.tensors.size(); ++tensor) {
      for (const plan::Holding& holding : plan_.tensors[tensor].holdings) {
        const Comparison::Box box = counted_box(plan_, {tensor, holding.box});
        for (std::uint32_t number = 0; number < comparison_.classes.size(); ++number) {
          if (row(holding).stamp != 0 && std::ranges::binary_search(comparison_.classes[number].boxes, box)) {
            found.push_back({holding, node_of_rank_[holding.rank], number});
          }
        }
      }
    }
    return found;
  }

  /// The step of a daemon that has all ranks.
  device::StepMath on_one_node() {
    device::LoadedStats lane = loaded(std::get<device::StatsPlan>(lane_layout_of(plan_)), std::nullopt);
    return device::finish_stats(lane, {1, 1, kScale, rules(), true, device::kStamp}, cancel_);
  }

  StepOfNodes on_nodes(device::HashSums sums = device::HashSums::In) {
    StepOfNodes step;
    std::deque<device::LoadedStats> lanes;
    std::vector<NodeFindings> findings;
    for (NodeNumber node = 0; node < nodes(); ++node) {
      device::StatsPlan layout =
          stats_plan_of_node(std::get<device::StatsPlan>(lane_layout_of(plan_)), comparison_, node);
      lanes.push_back(loaded(std::move(layout), node));
      device::FinishStep finish{1, 1, kScale, {}, false, device::kStamp, true, sums};
      const device::Finished finished = device::finish_raw(lanes.back(), finish, cancel_);
      findings.push_back(findings_of(finished.math));
      step.cells.push_back(finished.raw->cells);
      step.class_hashes.push_back(finished.raw->class_hashes);
    }
    const JudgedCopies judged = compare(lanes, step);
    NodeCells all = sum_of_nodes(plan_.options.norm_type, pointers(step.cells));
    count_rows(plan_, judged.uncounted, all);
    NodeFindings joined = join_findings(plan_, node_of_rank_, pointers(findings));
    add_judged(judged, joined);
    step.math = decide(plan_.options.norm_type, all, joined, rules(), kScale);
    return step;
  }

  /// The classes whose hashes are not equal on all nodes that are in them.
  [[nodiscard]] std::vector<std::uint32_t> differing(const StepOfNodes& step) const {
    std::vector<std::uint32_t> differ;
    for (std::uint32_t number = 0; number < comparison_.classes.size(); ++number) {
      std::set<std::uint64_t> hashes;
      for (const NodeNumber node : comparison_.classes[number].nodes) {
        const std::vector<std::uint32_t>& own = comparison_.of_node[node];
        hashes.insert(step.class_hashes[node][static_cast<std::size_t>(std::ranges::find(own, number) - own.begin())]);
      }
      if (hashes.size() > 1) {
        differ.push_back(number);
      }
    }
    return differ;
  }

 private:
  static constexpr double kScale = 4;

  void make_nodes() {
    const std::uint64_t world = 3 + below(6);
    const std::uint64_t nodes = 2 + below(3);
    std::map<std::uint64_t, NodeNumber> numbers;  // by lowest rank
    for (std::uint64_t rank = 0; rank < world; ++rank) {
      const auto number = static_cast<NodeNumber>(numbers.size());
      node_of_rank_.push_back(numbers.try_emplace(rank == 1 ? nodes : below(nodes - 1), number).first->second);
    }
    plan_.world_size = static_cast<std::int64_t>(world);
  }

  void add_tensor() {
    const auto index = static_cast<std::uint32_t>(plan_.tensors.size());
    const plan::PlannedTensor* tied = index > 0 && below(3) == 0 ? &plan_.tensors[below(index)] : nullptr;
    plan::PlannedTensor tensor;
    tensor.counted_as = index;
    tensor.boxes = tied == nullptr ? static_cast<std::int64_t>(1 + below(2)) : tied->boxes;
    std::vector<std::uint64_t> elements;
    for (std::int64_t box = 0; box < tensor.boxes; ++box) {
      elements.push_back(tied == nullptr ? 1 + below(4) : elements_of(*tied, static_cast<std::uint32_t>(box)));
    }
    if (tied != nullptr && tied->counted_boxes.empty()) {
      tensor.counted_as = tied->counted_as;
      for (std::int32_t box = 0; box < tensor.boxes; ++box) {
        tensor.counted_boxes.push_back(below(5) == 0 ? -1 : box);
      }
    } else {
      plan_.norm_groups[0].tensors.push_back(index);
    }
    tensor.clip_group = static_cast<std::uint32_t>(below(plan_.clip_groups.size()));
    if (const std::uint64_t layer = below(4); layer != 0) {
      tensor.declaration.layer = "layer" + std::to_string(layer);
    }
    hold(tensor, elements);
    plan_.tensors.push_back(std::move(tensor));
  }

  /// Each box has a rank at least; some ranks hold nothing, and some a part without elements.
  void hold(plan::PlannedTensor& tensor, const std::vector<std::uint64_t>& elements) {
    std::vector<std::uint32_t> ranks(node_of_rank_.size());
    std::iota(ranks.begin(), ranks.end(), 0U);
    std::shuffle(ranks.begin(), ranks.end(), random_);
    for (std::uint32_t at = 0; at < ranks.size(); ++at) {
      auto box = static_cast<std::uint32_t>(at < elements.size() ? at : below(elements.size() + 2));
      if (box > elements.size()) {
        continue;
      }
      const std::uint64_t held = box < elements.size() ? elements[box] : 0;
      tensor.holdings.push_back({ranks[at], static_cast<std::uint32_t>(rows_[ranks[at]].size()), box, held});
      rows_[ranks[at]].emplace_back();
    }
    std::ranges::sort(tensor.holdings, {}, &plan::Holding::rank);
    if (!tensor.counted_boxes.empty()) {
      tensor.counted_boxes.push_back(-1);  // of the part without elements
    }
  }

  static std::uint64_t elements_of(const plan::PlannedTensor& tensor, std::uint32_t box) {
    return std::ranges::find(tensor.holdings, box, &plan::Holding::box)->elements;
  }

  device::StatsRow some_row(std::uint64_t elements, bool finite) {
    const std::vector<double> scales{1, 1, 1, 1e-3, 1e-200, 1e200};
    const double scale = scales[below(scales.size())];
    std::vector<double> values;
    for (std::uint64_t i = 0; i < elements; ++i) {
      values.push_back(scale * std::normal_distribution<double>()(random_));
    }
    if (!finite && below(12) == 0) {
      values[0] = below(2) == 0 ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
    }
    return device::row_of(values, plan_.options.norm_type);
  }

  [[nodiscard]] std::vector<plan::ClipRule> rules() const {
    plan::ClipRule rule;
    rule.max_norm = 1.0;
    rule.norm_dtype = plan::DType::Float64;
    return std::vector<plan::ClipRule>(plan_.clip_groups.size(), rule);
  }

  device::LoadedStats loaded(device::StatsPlan layout, std::optional<NodeNumber> node) {
    std::vector<device::BufferView> tables;
    for (std::size_t rank = 0; rank < rows_.size(); ++rank) {
      const bool here = !node || node_of_rank_[rank] == *node;
      std::vector<device::StatsRow>& table = rows_[rank];
      tables.push_back(
          here ? device::BufferView{reinterpret_cast<std::byte*>(table.data()), table.size() * sizeof(table[0])}
               : device::BufferView{}
      );
      layout.rank_buffers.push_back(here ? rank + 1 : 0);
    }
    return {std::move(layout), tables};
  }

  template <typename T>
  static std::vector<const T*> pointers(const std::vector<T>& all) {
    std::vector<const T*> each;
    for (const T& one : all) {
      each.push_back(&one);
    }
    return each;
  }

  /// The rounds that follow where hashes differ, of all boxes at once: first their hashes, then their rows.
  JudgedCopies compare(std::deque<device::LoadedStats>& lanes, StepOfNodes& step) {
    const PeerCompare classes{0, differing(step), {}};
    std::vector<PeerRows::Row> rows;
    std::map<Comparison::Box, std::set<std::uint64_t>> hashes;
    for (NodeNumber node = 0; node < lanes.size(); ++node) {
      const std::vector<std::uint64_t> read =
          this->read(lanes[node], rows_wanted_of(comparison_, node, classes)).box_hashes;
      std::size_t at = 0;
      for (const std::uint32_t number : classes.classes) {
        if (std::ranges::binary_search(comparison_.of_node[node], number)) {
          for (const Comparison::Box& box : comparison_.classes[number].boxes) {
            hashes[box].insert(read.at(at++));
          }
        }
      }
      EXPECT_EQ(at, read.size());
    }
    PeerCompare boxes;
    for (const auto& [box, said] : hashes) {
      if (said.size() > 1) {
        boxes.boxes.push_back(box);
      }
    }
    step.compared = !boxes.boxes.empty();
    for (NodeNumber node = 0; node < lanes.size(); ++node) {
      for (PeerRows::Row& row : read(lanes[node], rows_wanted_of(comparison_, node, boxes)).rows) {
        EXPECT_TRUE(belongs(plan_, comparison_, node, boxes.boxes, row));
        rows.push_back(row);
      }
    }
    return judge_copies(plan_, node_of_rank_, std::move(rows));
  }

  device::RowsRead read(device::LoadedStats& lane, device::ReadRows wanted) {
    wanted.tag = 1;
    if (wanted.classes.empty() && wanted.boxes.empty()) {
      return {};
    }
    return device::read_rows(lane, wanted, cancel_);
  }

  std::mt19937_64 random_;
  plan::Plan plan_;
  std::vector<NodeNumber> node_of_rank_;
  Comparison comparison_;
  std::vector<std::vector<device::StatsRow>> rows_;  ///< by rank
  std::atomic<bool> cancel_{false};
};

}  // namespace gradsync::engine
