#include "engine/peers/sums/comparison.hpp"

#include "engine/plan/lane_plan.hpp"
#include "plan/interrupt.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace gradsync::engine {

namespace {

/// The nodes that hold a box or a tied copy of it, in the order of ranks, and the node that counts it.
struct HeldBox {
  std::vector<NodeNumber> nodes;
  std::optional<NodeNumber> owner;
};

using HeldBoxes = std::map<Comparison::Box, HeldBox>;

HeldBoxes held_boxes(const plan::Plan& plan, const std::vector<NodeNumber>& node_of_rank) {
  HeldBoxes held;
  for (std::uint32_t index = 0; index < plan.tensors.size(); ++index) {
    plan::interruption_point();
    const plan::PlannedTensor& tensor = plan.tensors[index];
    auto last = held.end();
    for (const plan::Holding& holding : tensor.holdings) {
      if (holding.elements == 0) {
        continue;
      }
      const Comparison::Box box = counted_box(plan, {index, holding.box});
      if (last == held.end() || last->first != box) {
        last = held.try_emplace(box).first;
      }
      HeldBox& found = last->second;
      const NodeNumber node = node_of_rank[holding.rank];
      if (found.nodes.empty() || found.nodes.back() != node) {
        found.nodes.push_back(node);
      }
      if (!found.owner && box.first == index) {
        found.owner = node;
      }
    }
  }
  return held;
}

/// The nodes that get some sum of a part, the lowest of those that get its first sum, and whether all of its sums are
/// on one node.
struct HeldPart {
  HeldBox held;
  bool on_one_node = true;
};

HeldPart held_part(const std::vector<plan::RankSum>& sums, const std::vector<NodeNumber>& node_of_rank) {
  HeldPart part;
  const NodeNumber first = node_of_rank[sums.front().sources.front().rank];
  for (const plan::RankSum& sum : sums) {
    for (const plan::SumMember& member : sum.sources) {
      part.on_one_node = part.on_one_node && node_of_rank[member.rank] == first;
    }
    for (const plan::SumMember& member : sum.destinations) {  // each is a source of its sum as well
      const NodeNumber node = node_of_rank[member.rank];
      part.held.nodes.push_back(node);
      if (&sum == &sums.front()) {
        part.held.owner = std::min(part.held.owner.value_or(node), node);
      }
    }
  }
  return part;
}

/// Data path arena: parts with several sums, unless these are all on one node.
HeldBoxes held_parts(const plan::Plan& plan, const std::vector<NodeNumber>& node_of_rank) {
  HeldBoxes held;
  std::map<std::uint32_t, HeldPart> known;  // by index into Plan::sums, which many parts share
  for (std::uint32_t index = 0; index < plan.tensors.size(); ++index) {
    plan::interruption_point();
    const std::vector<plan::PlannedPart>& parts = plan.tensors[index].parts;
    for (std::uint32_t number = 0; number < parts.size(); ++number) {
      const std::vector<plan::RankSum>& sums = plan.sums[parts[number].sums];
      if (parts[number].elements == 0 || sums.size() < 2) {
        continue;
      }
      const auto [part, fresh] = known.try_emplace(parts[number].sums);
      if (fresh) {
        part->second = held_part(sums, node_of_rank);
      }
      if (!part->second.on_one_node) {
        held.emplace_hint(held.end(), Comparison::Box{index, number}, part->second.held);
      }
    }
  }
  return held;
}

bool within(const plan::Plan& plan, const TensorSpans& spans) {
  return std::ranges::all_of(spans, [&](const auto& span) {
    return span.first < plan.tensors.size() && span.second <= plan.tensors.size() - span.first;
  });
}

template <typename Finding>
bool within(const plan::Plan& plan, const std::vector<Finding>& findings) {
  return std::ranges::all_of(findings, [&](const Finding& finding) { return finding.tensor < plan.tensors.size(); });
}

bool holds(const plan::PlannedTensor& tensor, std::uint32_t rank, std::uint32_t box) {
  auto holding = std::ranges::lower_bound(tensor.holdings, rank, {}, &plan::Holding::rank);
  while (holding != tensor.holdings.end() && holding->rank == rank && holding->box != box) {
    ++holding;
  }
  return holding != tensor.holdings.end() && holding->rank == rank && holding->elements != 0;
}

std::optional<std::string> misfit_of(const plan::Plan& plan, const NodeFindings& found) {
  if (within(plan, found.nonfinite) && within(plan, found.divergence) && within(plan, found.missing) &&
      within(plan, found.absent)) {
    return std::nullopt;
  }
  return fmt::format("names a tensor that is none of the {} of the plan", plan.tensors.size());
}

std::optional<std::string> misfit_of(const Comparison& comparison, const NodeCells& cells) {
  if (cells.groups.size() == comparison.groups && cells.layers.size() == comparison.layers) {
    return std::nullopt;
  }
  return fmt::format(
      "has sums of {} clip groups and {} layers, and the plan {} and {}",
      cells.groups.size(),
      cells.layers.size(),
      comparison.groups,
      comparison.layers
  );
}

}  // namespace

Comparison::Box counted_box(const plan::Plan& plan, Comparison::Box box) {
  const plan::PlannedTensor& tensor = plan.tensors[box.first];
  if (tensor.counted_as == box.first || tensor.counted_boxes[box.second] < 0) {
    return box;
  }
  return {tensor.counted_as, static_cast<std::uint32_t>(tensor.counted_boxes[box.second])};
}

Comparison comparison_of(const plan::Plan& plan, std::vector<NodeNumber> node_of_rank) {
  Comparison comparison;
  std::map<std::pair<NodeNumber, std::vector<NodeNumber>>, std::size_t> classes;
  const bool stats = plan.options.data_path == plan::DataPath::Stats;
  for (auto& [box, held] : stats ? held_boxes(plan, node_of_rank) : held_parts(plan, node_of_rank)) {
    std::ranges::sort(held.nodes);
    held.nodes.erase(std::unique(held.nodes.begin(), held.nodes.end()), held.nodes.end());
    if (stats && held.nodes.size() < 2) {
      continue;
    }
    const NodeNumber owner = held.owner.value_or(held.nodes.front());
    const auto [found, fresh] = classes.emplace(std::pair(owner, held.nodes), comparison.classes.size());
    if (fresh) {
      comparison.classes.push_back({std::move(held.nodes), owner, {}});
    }
    comparison.classes[found->second].boxes.push_back(box);
  }
  const auto last = std::ranges::max_element(node_of_rank);
  comparison.of_node.resize(last == node_of_rank.end() ? 0 : *last + 1);
  for (std::uint32_t number = 0; number < comparison.classes.size(); ++number) {
    for (const NodeNumber node : comparison.classes[number].nodes) {
      comparison.of_node[node].push_back(number);
    }
  }
  comparison.node_of_rank = std::move(node_of_rank);
  comparison.groups = plan.clip_groups.size() > 1 ? plan.clip_groups.size() : 0;
  comparison.layers = layer_names(plan).size();
  return comparison;
}

std::optional<std::string> misfit_of(
    const plan::Plan& plan, const Comparison& comparison, const std::vector<SiteNumber>& sites, const PeerAsk& ask
) {
  const bool measured = ask.terms.kind == Ask::Kind::Finish || ask.terms.kind == Ask::Kind::NormOnly;
  if (ask.sites.size() != (measured ? sites.size() : 0)) {
    return measured ? fmt::format("has sums of {} devices, and its node {}", ask.sites.size(), sites.size())
                    : "has sums that nothing asks for";
  }
  for (std::size_t at = 0; at < ask.sites.size(); ++at) {
    const SiteSums& site = ask.sites[at];
    const std::size_t classes = comparison.of_node[sites[at]].size();
    if (auto misfit = misfit_of(plan, site.findings)) {
      return misfit;
    }
    if (auto misfit = misfit_of(comparison, site.cells)) {
      return misfit;
    }
    if (site.row_hashes.size() != classes) {
      return fmt::format("has {} hashes for {} classes", site.row_hashes.size(), classes);
    }
  }
  return std::nullopt;
}

std::optional<std::string> misfit_of(
    const plan::Plan& plan, const Comparison& comparison, const PeerDecision& decision
) {
  auto misfit = misfit_of(plan, decision.findings);
  return misfit || !decision.cells ? misfit : misfit_of(comparison, *decision.cells);
}

AskSize largest_ask(const plan::Plan& plan, const Comparison& comparison, const std::vector<NodeNumber>& node_of_rank) {
  // Characters of JSON, as docs/peer-protocol.md has them, with what separates them and the longest numbers.
  constexpr std::uint64_t kTerms = 512;
  constexpr std::uint64_t kOfSite = 256;
  constexpr std::uint64_t kSum = 99;
  constexpr std::uint64_t kHash = 19;
  constexpr std::uint64_t kSpan = 12;      // of tensors
  constexpr std::uint64_t kFinding = 160;  // one of each kind
  constexpr std::uint64_t kRank = 52;      // in all lists of these
  std::map<NodeNumber, std::map<SiteNumber, std::uint64_t>> ranks;
  for (std::size_t rank = 0; rank < node_of_rank.size(); ++rank) {
    ++ranks[node_of_rank[rank]][comparison.node_of_rank[rank]];
  }
  ranks.erase(0);
  const std::uint64_t each =
      kOfSite + kSum * (1 + comparison.groups + comparison.layers) + kSpan * (plan.tensors.size() / 2 + 1);
  AskSize largest;
  for (const auto& [node, sites] : ranks) {
    std::uint64_t bytes = kTerms;
    for (const auto& [site, count] : sites) {
      bytes += each + kHash * comparison.of_node[site].size() + device::kMaxFindings * (kFinding + kRank * count);
    }
    largest = bytes > largest.bytes ? AskSize{bytes, sites.size()} : largest;
  }
  return largest;
}

bool belongs(
    const plan::Plan& plan,
    const Comparison& comparison,
    NodeNumber node,
    const std::vector<Comparison::Box>& boxes,
    const PeerRows::Row& row
) {
  if (row.tensor >= plan.tensors.size() || row.rank < 0 ||
      static_cast<std::size_t>(row.rank) >= comparison.node_of_rank.size() ||
      comparison.node_of_rank[static_cast<std::size_t>(row.rank)] != node) {
    return false;
  }
  const plan::PlannedTensor& tensor = plan.tensors[row.tensor];
  std::uint32_t box = row.box;
  if (plan.options.data_path == plan::DataPath::Arena) {
    if (row.box >= tensor.parts.size()) {
      return false;
    }
    box = tensor.parts[row.box].box;
  }
  const auto rank = static_cast<std::uint32_t>(row.rank);
  const bool held = holds(tensor, rank, box) || std::ranges::any_of(tensor.copies, [&](std::uint32_t copy) {
                      return holds(plan.tensors[copy], rank, box);  // cut alike, and summed with it
                    });
  return held && std::ranges::binary_search(boxes, counted_box(plan, {row.tensor, row.box}));
}

}  // namespace gradsync::engine
