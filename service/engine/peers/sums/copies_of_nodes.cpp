#include "engine/peers/sums/copies_of_nodes.hpp"

#include "device/stats/copies.hpp"
#include "device/stats/stats_row.hpp"
#include "engine/peers/sums/comparison.hpp"
#include "engine/peers/sums/node_sums.hpp"
#include "engine/plan/lane_plan.hpp"

#include <algorithm>
#include <map>
#include <span>
#include <tuple>
#include <utility>

namespace gradsync::engine {

namespace {

using NodeRow = PeerRows::Row;

/// What counts a row as one with others: the node of its rank; on data path arena the sum that its rank gets, by its
/// number among those of the part. The lowest one that the rows of a box have owns the box.
class Counters {
 public:
  Counters(const plan::Plan& plan, const std::vector<NodeNumber>& node_of_rank)
      : plan_(plan), node_of_rank_(node_of_rank) {}

  [[nodiscard]] std::uint32_t of(const NodeRow& row) {
    const auto rank = static_cast<std::size_t>(row.rank);
    if (plan_.options.data_path == plan::DataPath::Stats) {
      return node_of_rank_[rank];
    }
    const std::uint32_t sums = plan_.tensors[row.tensor].parts[row.box].sums;
    const auto [known, fresh] = sum_of_rank_.try_emplace(sums);
    if (fresh) {
      known->second.resize(node_of_rank_.size());
      for (auto sum = static_cast<std::uint32_t>(plan_.sums[sums].size()); sum-- > 0;) {
        for (const plan::SumMember& member : plan_.sums[sums][sum].destinations) {
          known->second[member.rank] = sum;
        }
      }
    }
    return known->second[rank];
  }

 private:
  const plan::Plan& plan_;
  const std::vector<NodeNumber>& node_of_rank_;
  std::map<std::uint32_t, std::vector<std::uint32_t>> sum_of_rank_;  ///< by index into Plan::sums
};

/// The findings of one tensor each, while its boxes are read.
class JudgeBoxes {
 public:
  JudgeBoxes(const plan::Plan& plan, Counters& counters)
      : plan_(plan), travels_(plan.options.data_path == plan::DataPath::Arena), counters_(counters) {}

  /// All rows of a box that counts, that of its owner first, and those of its tied copies.
  void judge(Comparison::Box box, const std::vector<NodeRow>& rows, const std::vector<NodeRow>& copies) {
    const auto has_gradient = [](const NodeRow& row) { return row.row.stamp != 0; };
    const auto first = std::ranges::find_if(rows, has_gradient);
    if (first == rows.end() && std::ranges::none_of(copies, has_gradient)) {
      return;
    }
    if (plan_.tensors[box.first].counted_as == box.first) {
      judge_counted(box.first, first == rows.end() ? nullptr : &first->row, rows);
    } else {  // a tied copy that is cut otherwise than what is counted
      judge_copies_of(first == rows.end() ? nullptr : &first->row, rows);
    }
    judge_copies_of(first == rows.end() ? nullptr : &first->row, copies);
    if (first != rows.end()) {
      find_uncounted(*first, rows);
    }
    count_nonfinite(rows);
    const auto same_box = [](const NodeRow& a, const NodeRow& b) { return a.tensor == b.tensor && a.box == b.box; };
    for (auto at = copies.begin(); at != copies.end();) {
      const auto end = std::find_if_not(at, copies.end(), [&](const NodeRow& row) { return same_box(*at, row); });
      count_nonfinite({at, end});
      at = end;
    }
  }

  [[nodiscard]] JudgedCopies finish() {
    for (const auto& [tensor, count] : nonfinite_) {
      judged_.nonfinite.push_back({tensor, count, {}});
    }
    for (auto& [tensor, finding] : divergence_) {
      finding.tensor = tensor;
      const std::vector<std::int64_t>& alike = alike_[tensor];
      finding.majority.insert(finding.majority.end(), alike.begin(), alike.end());
      for (std::vector<std::int64_t>* ranks : {&finding.ranks, &finding.majority, &finding.suspects}) {
        std::ranges::sort(*ranks);
      }
      judged_.divergence.push_back(std::move(finding));
    }
    for (auto& [tensor, ranks] : missing_) {
      std::ranges::sort(ranks);
      judged_.missing.push_back({tensor, std::move(ranks)});
    }
    return std::move(judged_);
  }

 private:
  [[nodiscard]] bool differs(const device::StatsRow& first, const device::StatsRow& row) {
    if (!device::agree(first, row, plan_.options.norm_type)) {
      return true;
    }
    judged_.sums_differ = judged_.sums_differ || (first != row && row.nonfinite == 0);
    return false;
  }

  void judge_counted(std::uint32_t tensor, const device::StatsRow* first, const std::vector<NodeRow>& rows) {
    std::vector<std::pair<std::int64_t, device::StatsRow>> holders;
    for (const NodeRow& row : rows) {
      if (row.row.stamp == 0) {
        missing_[tensor].push_back(row.rank);
      }
      if (row.row.stamp == 0 && !travels_) {
        continue;
      }
      holders.emplace_back(row.rank, row.row);
      // Where gradients travel, ranks without one get zeros for it.
      if (row.row.stamp == 0 || differs(*first, row.row)) {
        divergence_[tensor].ranks.push_back(row.rank);
      }
    }
    if (divergence_.contains(tensor)) {
      device::add_copies(holders, plan_.options.norm_type, divergence_[tensor]);
    }
  }

  /// A tied copy has to agree with what counts, whatever most copies have. `counted` is null where no rank that holds
  /// what counts has a gradient: to be equal to each other is not enough.
  void judge_copies_of(const device::StatsRow* counted, const std::vector<NodeRow>& copies) {
    for (const NodeRow& copy : copies) {
      if (copy.row.stamp == 0) {
        missing_[copy.tensor].push_back(copy.rank);
      } else if (counted == nullptr || differs(*counted, copy.row)) {
        divergence_[copy.tensor].ranks.push_back(copy.rank);
        divergence_[copy.tensor].suspects.push_back(copy.rank);
      } else {
        alike_[copy.tensor].push_back(copy.rank);
      }
    }
  }

  /// A box has as many values that are not finite as the copy with most of them, and its owner counted its own copies.
  void count_nonfinite(std::span<const NodeRow> rows) {
    std::uint64_t all = 0;
    std::uint64_t counted = 0;
    for (const NodeRow& row : rows) {
      const std::uint64_t values = row.row.stamp == 0 ? 0 : row.row.nonfinite;
      all = std::max(all, values);
      counted = counters_.of(row) == counters_.of(rows.front()) ? std::max(counted, values) : counted;
    }
    if (all > counted) {
      nonfinite_[rows.front().tensor] += all - counted;
    }
  }

  /// The owner of a box counted it if any of its ranks has a gradient.
  void find_uncounted(const NodeRow& first, const std::vector<NodeRow>& rows) {
    const bool counted = std::ranges::any_of(rows, [&](const NodeRow& row) {
      return row.row.stamp != 0 && counters_.of(row) == counters_.of(rows.front());
    });
    if (!counted && plan_.tensors[first.tensor].counted_as == first.tensor) {
      judged_.uncounted.push_back(first);
    }
  }

  const plan::Plan& plan_;
  bool travels_;
  Counters& counters_;
  std::map<std::uint32_t, std::uint64_t> nonfinite_;
  std::map<std::uint32_t, device::DivergenceFinding> divergence_;
  std::map<std::uint32_t, std::vector<std::int64_t>> missing_;
  std::map<std::uint32_t, std::vector<std::int64_t>> alike_;  ///< ranks whose tied copies are as they have to be
  JudgedCopies judged_;
};

std::uint64_t elements_of(const plan::PlannedTensor& tensor, std::uint32_t box) {
  if (!tensor.parts.empty()) {
    return tensor.parts[box].elements;
  }
  const auto holding = std::ranges::find(tensor.holdings, box, &plan::Holding::box);
  return holding == tensor.holdings.end() ? 0 : holding->elements;
}

void add_to_cell(double norm_type, const device::TensorSum& sum, device::TensorSum& cell) {
  device::NormSum both(norm_type);
  both.add(cell);
  both.add(sum);
  cell = both.sum();
}

}  // namespace

JudgedCopies judge_copies(
    const plan::Plan& plan, const std::vector<NodeNumber>& node_of_rank, std::vector<PeerRows::Row> rows
) {
  Counters counters(plan, node_of_rank);
  const bool travels = plan.options.data_path == plan::DataPath::Arena;
  std::ranges::sort(rows, {}, [&](const NodeRow& row) {  // of a part the first sum comes first
    return std::tuple(row.tensor, row.box, travels ? counters.of(row) : 0, row.rank);
  });
  std::map<Comparison::Box, std::pair<std::vector<NodeRow>, std::vector<NodeRow>>> boxes;
  std::vector<std::pair<std::uint32_t, std::int64_t>> read;
  for (const NodeRow& row : rows) {
    read.emplace_back(row.tensor, row.rank);
    const Comparison::Box box = counted_box(plan, {row.tensor, row.box});
    auto& [counted, copies] = boxes[box];
    (row.tensor == box.first ? counted : copies).push_back(row);
  }
  JudgeBoxes judge(plan, counters);
  for (const auto& [box, held] : boxes) {
    judge.judge(box, held.first, held.second);
  }
  JudgedCopies judged = judge.finish();
  judged.read = std::move(read);
  return judged;
}

void add_round(JudgedCopies round, JudgedCopies& before) {
  NodeFindings all{std::move(before.nonfinite), std::move(before.divergence), std::move(before.missing), 0, {}};
  add_findings({std::move(round.nonfinite), std::move(round.divergence), std::move(round.missing), 0, {}}, all);
  before.nonfinite = std::move(all.nonfinite);
  before.divergence = std::move(all.divergence);
  before.missing = std::move(all.missing);
  before.uncounted.insert(before.uncounted.end(), round.uncounted.begin(), round.uncounted.end());
  before.read.insert(before.read.end(), round.read.begin(), round.read.end());
  before.sums_differ = before.sums_differ || round.sums_differ;
}

void add_judged(JudgedCopies judged, NodeFindings& all) {
  std::ranges::sort(judged.read);
  for (device::DivergenceFinding& finding : all.divergence) {
    for (std::vector<std::int64_t>* ranks : {&finding.ranks, &finding.majority, &finding.suspects}) {
      std::erase_if(*ranks, [&](std::int64_t rank) {
        return std::ranges::binary_search(judged.read, std::pair(finding.tensor, rank));
      });
    }
  }
  std::erase_if(all.divergence, [](const device::DivergenceFinding& finding) { return finding.ranks.empty(); });
  NodeFindings some{std::move(judged.nonfinite), std::move(judged.divergence), std::move(judged.missing), 0, {}};
  for (const device::NonfiniteFinding& finding : some.nonfinite) {
    some.nonfinite_total += finding.count;
  }
  std::erase_if(some.missing, [&](const device::MissingFinding& finding) {
    return std::ranges::any_of(all.absent, [&](const auto& span) {
      return finding.tensor >= span.first && finding.tensor - span.first < span.second;
    });
  });
  add_findings(some, all);
}

void count_rows(const plan::Plan& plan, const std::vector<PeerRows::Row>& rows, NodeCells& cells) {
  if (rows.empty()) {
    return;
  }
  const std::vector<std::string> layers = layer_names(plan);
  for (const NodeRow& row : rows) {
    const plan::PlannedTensor& tensor = plan.tensors[row.tensor];
    const device::TensorSum sum = device::sum_of(row.row);
    add_to_cell(plan.options.norm_type, sum, cells.whole);
    if (!cells.groups.empty()) {
      add_to_cell(plan.options.norm_type, sum, cells.groups[tensor.clip_group]);
    }
    if (tensor.declaration.layer) {
      const auto layer = std::ranges::find(layers, *tensor.declaration.layer);
      add_to_cell(plan.options.norm_type, sum, cells.layers[static_cast<std::size_t>(layer - layers.begin())]);
    }
    cells.counted_elements += elements_of(tensor, row.box);
  }
}

}  // namespace gradsync::engine
