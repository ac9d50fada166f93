// Copies on several sites, when all nodes have asked. Hashes of classes are compared at once. Where they differ, the
// nodes are asked for a hash of each box, and then for the rows of those boxes, kMostBoxes at a time: of all whose
// owner has no gradient, because these are yet to be counted, and of as many others as findings have room for. Data
// path arena has the same rounds; there the hash of a class says as well that a box of it is not counted.

#include "device/stats/box_hash.hpp"
#include "engine/peers/coordinator_machine.hpp"
#include "engine/peers/sums/node_sums.hpp"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

namespace gradsync::engine {

namespace {

/// What one node alone gets has no other hash to differ from: the node says so if it has not counted that. Of others it
/// says what no other node does.
bool is_left_to_count(const Comparison::Class& one, std::uint64_t hash) {
  return one.nodes.size() == 1 && hash != 0 && device::is_uncounted(hash);
}

}  // namespace

void CoordinatorMachine::all_asked(TimePoint now, Actions& actions) {
  PeerCompare differing{word(), {}, {}};
  const bool measured = !under_way_.asks.begin()->second.sites.empty();
  const std::size_t classes = course_.comparison && measured ? course_.comparison->classes.size() : 0;
  for (std::uint32_t number = 0; number < classes; ++number) {
    std::optional<std::uint64_t> first;
    for (const SiteNumber holder : course_.comparison->classes[number].nodes) {
      const std::vector<std::uint32_t>& own = course_.comparison->of_node[holder];
      const auto at = static_cast<std::size_t>(std::ranges::lower_bound(own, number) - own.begin());
      const std::uint64_t hash = sums_of(holder).row_hashes[at];
      if (first.value_or(hash) != hash || is_left_to_count(course_.comparison->classes[number], hash)) {
        differing.classes.push_back(number);
        break;
      }
      first = hash;
    }
  }
  if (differing.classes.empty()) {
    decide_attempt(now, actions);
  } else {
    under_way_.classes = differing.classes;
    compare(now, std::move(differing), actions);
  }
}

void CoordinatorMachine::compare(TimePoint now, PeerCompare wanted, Actions& actions) {
  under_way_.phase = Phase::Comparing;
  under_way_.rows.clear();
  under_way_.boxes = wanted.boxes;
  under_way_.compared = sites_of(wanted);
  std::set<NodeNumber> nodes;
  for (const SiteNumber number : under_way_.compared) {
    nodes.insert(course_.by_rank->sites[number].node);
  }
  for (const NodeNumber number : nodes) {
    send(now, node(number), wanted, actions);
  }
}

/// The sites that hold what is asked for. Boxes are of the classes that are compared.
std::set<SiteNumber> CoordinatorMachine::sites_of(const PeerCompare& wanted) const {
  std::set<SiteNumber> sites;
  for (const std::uint32_t index : under_way_.classes) {
    const Comparison::Class& one = course_.comparison->classes[index];
    const bool concerned = wanted.boxes.empty() || std::ranges::any_of(wanted.boxes, [&](const Comparison::Box& box) {
                             return std::ranges::binary_search(one.boxes, box);
                           });
    if (concerned) {
      sites.insert(one.nodes.begin(), one.nodes.end());
    }
  }
  return sites;
}

/// What does not fit the round is of an earlier one, or cannot be: it is not an answer.
bool CoordinatorMachine::fits(SiteNumber number, const PeerRows& rows) const {
  if (under_way_.boxes.empty()) {
    std::size_t boxes = 0;
    for (const std::uint32_t index : under_way_.classes) {
      const Comparison::Class& one = course_.comparison->classes[index];
      boxes += std::ranges::binary_search(one.nodes, number) ? one.boxes.size() : 0;
    }
    return rows.rows.empty() && rows.box_hashes.size() == boxes;
  }
  return !rows.rows.empty() && std::ranges::all_of(rows.rows, [&](const PeerRows::Row& row) {
    return belongs(*course_.plan, *course_.comparison, number, under_way_.boxes, row);
  });
}

void CoordinatorMachine::on_rows(TimePoint now, NodeNumber from, PeerRows rows, Actions& actions) {
  if (under_way_.phase != Phase::Comparing) {
    return;
  }
  const std::vector<SiteNumber>& sites = course_.by_rank->sites_of_node[from];
  if (rows.site >= sites.size()) {
    return;
  }
  const SiteNumber number = sites[rows.site];
  if (!under_way_.compared.contains(number) || !fits(number, rows)) {
    return;
  }
  under_way_.rows.emplace(number, std::move(rows));
  if (under_way_.rows.size() < under_way_.compared.size()) {
    return;
  }
  if (under_way_.boxes.empty()) {
    find_boxes();
  } else {
    judge_round();
  }
  next_boxes(now, actions);
}

/// The hashes of boxes come class by class, from each site those of the classes that it is in.
void CoordinatorMachine::find_boxes() {
  std::map<SiteNumber, std::size_t> read;
  std::vector<Comparison::Box> others;
  for (const std::uint32_t index : under_way_.classes) {
    const Comparison::Class& one = course_.comparison->classes[index];
    for (const Comparison::Box& box : one.boxes) {
      std::optional<std::uint64_t> counted;
      bool differ = false;
      for (const SiteNumber holder : one.nodes) {
        const std::uint64_t hash = under_way_.rows.at(holder).box_hashes[read[holder]++];
        differ = differ || is_left_to_count(one, hash) || counted.value_or(hash) != hash;
        counted = holder == one.owner || !counted ? hash : counted;
      }
      if (differ) {
        (device::is_uncounted(*counted) ? under_way_.later : others).push_back(box);
      }
    }
  }
  others.resize(std::min(others.size(), device::kMaxFindings));
  under_way_.later.insert(under_way_.later.end(), others.begin(), others.end());
}

void CoordinatorMachine::next_boxes(TimePoint now, Actions& actions) {
  std::vector<Comparison::Box>& later = under_way_.later;
  if (later.empty()) {
    decide_attempt(now, actions);
    return;
  }
  const auto end = later.begin() + static_cast<std::ptrdiff_t>(std::min(later.size(), kMostBoxes));
  PeerCompare wanted{word(), {}, {later.begin(), end}};
  later.erase(later.begin(), end);
  std::ranges::sort(wanted.boxes);
  compare(now, std::move(wanted), actions);
}

void CoordinatorMachine::judge_round() {
  std::vector<PeerRows::Row> rows;
  for (const auto& [number, said] : under_way_.rows) {
    rows.insert(rows.end(), said.rows.begin(), said.rows.end());
  }
  const auto place = [](const PeerRows::Row& row) { return std::tuple(row.tensor, row.box, row.rank); };
  std::ranges::sort(rows, {}, place);
  const auto same = [&](const PeerRows::Row& a, const PeerRows::Row& b) { return place(a) == place(b); };
  rows.erase(std::unique(rows.begin(), rows.end(), same), rows.end());
  JudgedCopies judged = judge_copies(*course_.plan, course_.comparison->node_of_rank, std::move(rows));
  add_round(std::move(judged), under_way_.copies);
}

}  // namespace gradsync::engine
