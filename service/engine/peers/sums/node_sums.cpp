#include "engine/peers/sums/node_sums.hpp"

#include "base/text/hash.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <set>

namespace gradsync::engine {

namespace {

using Sums = std::vector<device::TensorSum>;

template <typename Cell>
device::TensorSum sum_over(double norm_type, std::span<const NodeCells* const> nodes, Cell cell) {
  device::NormSum sum(norm_type);
  for (const NodeCells* node : nodes) {
    sum.add(cell(*node));
  }
  return sum.sum();
}

Sums sums_over(double norm_type, std::span<const NodeCells* const> nodes, Sums NodeCells::*sums) {
  Sums all;
  for (std::size_t i = 0; i < (nodes.front()->*sums).size(); ++i) {
    all.push_back(sum_over(norm_type, nodes, [&](const NodeCells& node) { return (node.*sums)[i]; }));
  }
  return all;
}

double norm_of(double norm_type, const device::TensorSum& cell) {
  device::NormSum sum(norm_type);
  sum.add(cell);
  return sum.norm();
}

template <typename Item>
void unite(const std::vector<Item>& some, std::vector<Item>& all) {
  all.insert(all.end(), some.begin(), some.end());
  std::ranges::sort(all);
  all.erase(std::unique(all.begin(), all.end()), all.end());
}

void unite_finding(const device::NonfiniteFinding& some, device::NonfiniteFinding& all) {
  all.count += some.count;
  unite(some.inputs, all.inputs);
}

void unite_finding(const device::DivergenceFinding& some, device::DivergenceFinding& all) {
  unite(some.ranks, all.ranks);
  unite(some.majority, all.majority);
  unite(some.suspects, all.suspects);
}

void unite_finding(const device::MissingFinding& some, device::MissingFinding& all) { unite(some.ranks, all.ranks); }

template <typename Finding>
void unite_findings(const std::vector<Finding>& some, std::vector<Finding>& all) {
  for (const Finding& finding : some) {
    const auto at = std::ranges::lower_bound(all, finding.tensor, {}, &Finding::tensor);
    if (at != all.end() && at->tensor == finding.tensor) {
      unite_finding(finding, *at);
    } else {
      all.insert(at, finding);
    }
  }
  all.resize(std::min(all.size(), device::kMaxFindings));
}

std::vector<std::uint32_t> tensors_in(const TensorSpans& spans) {
  std::vector<std::uint32_t> tensors;
  for (const auto& [first, count] : spans) {
    for (std::uint32_t i = 0; i < count; ++i) {
      tensors.push_back(first + i);
    }
  }
  return tensors;
}

void add_to_spans(std::uint32_t tensor, TensorSpans& spans) {
  if (!spans.empty() && spans.back().first + spans.back().second == tensor) {
    ++spans.back().second;
  } else {
    spans.emplace_back(tensor, 1);
  }
}

/// The tensors that some node says to be absent, with the nodes that say so.
std::map<std::uint32_t, std::set<NodeNumber>> absent_on(std::span<const NodeFindings* const> nodes) {
  std::map<std::uint32_t, std::set<NodeNumber>> absent;
  for (NodeNumber node = 0; node < nodes.size(); ++node) {
    for (const std::uint32_t tensor : tensors_in(nodes[node]->absent)) {
      absent[tensor].insert(node);
    }
  }
  return absent;
}

/// The nodes that bring something to a sum.
std::set<NodeNumber> sources_of(const plan::RankSum& sum, std::span<const NodeNumber> node_of_rank) {
  std::set<NodeNumber> nodes;
  for (const plan::SumMember& member : sum.sources) {
    nodes.insert(node_of_rank[member.rank]);
  }
  return nodes;
}

/// By tensor that is summed: the nodes that have no gradient of it, nor of its tied copies. Data path arena.
std::map<std::uint32_t, std::set<NodeNumber>> without_gradient(
    const plan::Plan& plan, std::span<const NodeFindings* const> nodes
) {
  std::map<std::uint32_t, std::set<NodeNumber>> without;
  for (const auto& [index, said_by] : absent_on(nodes)) {
    const plan::PlannedTensor& tensor = plan.tensors[index];
    without[tensor.parts.empty() ? tensor.counted_as : index].insert(said_by.begin(), said_by.end());
  }
  return without;
}

/// The ranks that get a sum of the tensor to which none of its nodes contributed; nothing: so are all of its sums.
std::optional<std::vector<std::int64_t>> ranks_of_empty_sums(
    const plan::Plan& plan,
    const plan::PlannedTensor& tensor,
    std::span<const NodeNumber> node_of_rank,
    const std::set<NodeNumber>& without
) {
  std::vector<std::int64_t> ranks;
  bool all = true;
  for (const plan::PlannedPart& part : tensor.parts) {
    for (const plan::RankSum& sum : plan.sums[part.sums]) {
      const bool empty = std::ranges::includes(without, sources_of(sum, node_of_rank));
      all = all && empty;
      for (const plan::SumMember& member : sum.destinations) {
        if (empty) {
          ranks.push_back(member.rank);
        }
      }
    }
  }
  std::ranges::sort(ranks);
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return all ? std::nullopt : std::optional(std::move(ranks));
}

void join_absent_of_sums(
    const plan::Plan& plan,
    std::span<const NodeNumber> node_of_rank,
    std::span<const NodeFindings* const> nodes,
    NodeFindings& all
) {
  std::set<std::uint32_t> absent;
  std::vector<device::MissingFinding> missing;
  for (const auto& [index, without] : without_gradient(plan, nodes)) {
    const plan::PlannedTensor& tensor = plan.tensors[index];
    auto ranks = ranks_of_empty_sums(plan, tensor, node_of_rank, without);
    if (!ranks) {
      absent.insert(index);
      absent.insert(tensor.copies.begin(), tensor.copies.end());
    } else if (!ranks->empty()) {
      missing.push_back({index, std::move(*ranks)});
    }
  }
  for (const std::uint32_t tensor : absent) {
    add_to_spans(tensor, all.absent);
  }
  std::erase_if(all.missing, [&](const device::MissingFinding& finding) { return absent.contains(finding.tensor); });
  unite_findings(missing, all.missing);
}

/// Those of `absent` of which a tied copy has a gradient. They are not unused: the norm leaves that gradient out.
std::vector<std::uint32_t> copied_alone(const plan::Plan& plan, const std::vector<std::uint32_t>& absent) {
  std::vector<std::uint32_t> found;
  for (std::uint32_t index = 0; index < plan.tensors.size() && !absent.empty(); ++index) {
    const plan::PlannedTensor& tensor = plan.tensors[index];
    if (!tensor.counted_boxes.empty() && std::ranges::binary_search(absent, tensor.counted_as) &&
        !std::ranges::binary_search(absent, index)) {
      found.push_back(tensor.counted_as);
    }
  }
  std::ranges::sort(found);
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

/// The ranks that hold something of it on nodes that `of_node` is true for.
template <typename OfNode>
std::vector<std::int64_t> holders_of(
    const plan::PlannedTensor& tensor, std::span<const NodeNumber> node_of_rank, OfNode of_node
) {
  std::vector<std::int64_t> ranks;
  for (const plan::Holding& holding : tensor.holdings) {
    if (holding.elements != 0 && of_node(node_of_rank[holding.rank])) {
      ranks.push_back(holding.rank);
    }
  }
  return ranks;
}

/// Its eight bytes; all NaNs are one.
void append_bits(double value, std::string& text) {
  const auto bits = std::bit_cast<std::uint64_t>(std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value);
  for (int shift = 56; shift >= 0; shift -= 8) {
    text.push_back(static_cast<char>(bits >> shift & 0xFF));
  }
}

}  // namespace

NodeCells sum_of_nodes(double norm_type, std::span<const NodeCells* const> nodes) {
  NodeCells all;
  all.whole = sum_over(norm_type, nodes, [](const NodeCells& node) { return node.whole; });
  all.groups = sums_over(norm_type, nodes, &NodeCells::groups);
  all.layers = sums_over(norm_type, nodes, &NodeCells::layers);
  for (const NodeCells* node : nodes) {
    all.counted_elements += node->counted_elements;
  }
  return all;
}

NodeFindings findings_of(const device::StepMath& math) {
  NodeFindings findings{math.nonfinite, math.divergence, math.missing, math.nonfinite_total, {}};
  for (const std::uint32_t tensor : math.absent) {
    add_to_spans(tensor, findings.absent);
  }
  return findings;
}

void add_findings(const NodeFindings& some, NodeFindings& all) {
  unite_findings(some.nonfinite, all.nonfinite);
  unite_findings(some.divergence, all.divergence);
  unite_findings(some.missing, all.missing);
  all.nonfinite_total += some.nonfinite_total;
}

NodeFindings join_findings(
    const plan::Plan& plan, std::span<const NodeNumber> node_of_rank, std::span<const NodeFindings* const> nodes
) {
  NodeFindings all;
  for (const NodeFindings* node : nodes) {
    add_findings(*node, all);
  }
  if (plan.options.data_path == plan::DataPath::Arena) {
    join_absent_of_sums(plan, node_of_rank, nodes, all);
    return all;
  }
  std::vector<device::MissingFinding> missing;
  std::vector<std::uint32_t> absent;
  for (const auto& entry : absent_on(nodes)) {
    const plan::PlannedTensor& tensor = plan.tensors[entry.first];
    const auto is_without = [&](NodeNumber node) { return entry.second.contains(node); };
    if (holders_of(tensor, node_of_rank, std::not_fn(is_without)).empty()) {
      absent.push_back(entry.first);
    } else {
      missing.push_back({entry.first, holders_of(tensor, node_of_rank, is_without)});
    }
  }
  const std::vector<std::uint32_t> copied = copied_alone(plan, absent);
  for (const std::uint32_t tensor : absent) {
    if (std::ranges::binary_search(copied, tensor)) {
      missing.push_back({tensor, holders_of(plan.tensors[tensor], node_of_rank, [](NodeNumber) { return true; })});
    } else {
      add_to_spans(tensor, all.absent);
    }
  }
  unite_findings(missing, all.missing);
  return all;
}

device::StepMath decide(
    double norm_type,
    const NodeCells& cells,
    const NodeFindings& findings,
    const std::vector<plan::ClipRule>& rules,
    double scale
) {
  device::StepMath math;
  plan::DType dtype = plan::DType::Float32;
  for (std::size_t group = 0; group < rules.size(); ++group) {
    const double raw_norm = norm_of(norm_type, cells.groups.empty() ? cells.whole : cells.groups[group]);
    math.groups.push_back(plan::apply_clip_rule(rules[group], raw_norm, scale));
    math.raw_group_norms.push_back(raw_norm);
    dtype = rules[group].norm_dtype == plan::DType::Float64 ? plan::DType::Float64 : dtype;
  }
  plan::decide_together(math.groups);
  math.norm = plan::reported_norm(norm_of(norm_type, cells.whole), scale, dtype);
  for (const device::TensorSum& layer : cells.layers) {
    math.layer_norms.push_back(norm_of(norm_type, layer) / scale);
  }
  math.nonfinite = findings.nonfinite;
  math.divergence = findings.divergence;
  math.missing = findings.missing;
  math.absent = tensors_in(findings.absent);
  // A value may be in the norm and in no count, where too many copies differ to be read.
  math.nonfinite_total = std::max<std::uint64_t>(findings.nonfinite_total, cells.whole.nonfinite != 0 ? 1 : 0);
  math.counted_elements = cells.counted_elements;
  return math;
}

std::string result_digest(const device::StepMath& math, const std::string& policy_digest) {
  std::string text = fmt::format("{} groups, {} layers, ", math.groups.size(), math.layer_norms.size());
  append_bits(math.norm, text);
  for (const double layer : math.layer_norms) {
    append_bits(layer, text);
  }
  for (const plan::ClipOutcome& group : math.groups) {
    for (const double value : {group.norm, group.threshold, group.coefficient, group.multiplier}) {
      append_bits(value, text);
    }
    text.push_back(static_cast<char>('0' + static_cast<int>(group.action)));
  }
  return digest(text + policy_digest);
}

}  // namespace gradsync::engine
