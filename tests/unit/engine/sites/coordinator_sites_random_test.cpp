// What a coordinator decides of sites does not depend on which of them are on one node: random jobs, in each of which
// the same sites say the same, once on their nodes and once as nodes of their own.

#include "device/stats/box_hash.hpp"
#include "engine/peers/sums/node_plan.hpp"
#include "unit/engine/peers/machine_states.hpp"
#include "unit/engine/peers/sums/copied_plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

namespace gradsync::engine {
namespace {

/// What each site says in one step; a rank is a site of its own, with its number.
struct SitesSay {
  std::vector<SiteSums> sums;
  std::map<std::pair<SiteNumber, Comparison::Box>, std::uint64_t> box_hashes;
  std::map<std::pair<SiteNumber, Comparison::Box>, double> squares;
};

class RandomSites {
 public:
  explicit RandomSites(std::uint32_t seed) : random_(seed), sites_(static_cast<std::uint32_t>(2 + below(4))) {
    plan_.world_size = sites_;
    const std::uint32_t tensors = 1 + below(4);
    for (std::uint32_t tensor = 0; tensor < tensors; ++tensor) {
      std::vector<std::pair<std::uint32_t, std::uint32_t>> held;
      std::vector<plan::RankSum> sums;
      for (std::uint32_t rank = 0; rank < sites_; ++rank) {
        if (below(4) != 0 || rank == 0) {
          held.emplace_back(rank, 0);
          sums.push_back(sum_of_ranks({rank}));
        }
      }
      plan_.tensors.push_back(tensor_held_by(tensor, held));
      plan_.tensors.back().parts = {{0, tensor, 4, 0, 4, {}}};
      plan_.sums.push_back(std::move(sums));
    }
    std::vector<SiteNumber> site_of_rank;
    for (SiteNumber site = 0; site < sites_; ++site) {
      site_of_rank.push_back(site);
    }
    comparison_ = comparison_of(plan_, std::move(site_of_rank));
  }

  [[nodiscard]] std::uint32_t sites() const { return sites_; }

  [[nodiscard]] const plan::Plan& plan() const { return plan_; }

  [[nodiscard]] const Comparison& comparison() const { return comparison_; }

  [[nodiscard]] std::uint32_t below(std::uint32_t end) { return static_cast<std::uint32_t>(random_() % end); }

  /// By site; nodes are numbered by their lowest.
  [[nodiscard]] std::vector<NodeNumber> nodes() {
    std::map<std::uint32_t, NodeNumber> known;
    std::vector<NodeNumber> of_site;
    for (SiteNumber site = 0; site < sites_; ++site) {
      of_site.push_back(known.try_emplace(below(3), static_cast<NodeNumber>(known.size())).first->second);
    }
    return of_site;
  }

  [[nodiscard]] SitesSay say() {
    const std::array<std::uint64_t, 4> hashes{5, 6, 0, device::hash_of_copies_alone(2)};
    const bool alike = below(3) == 0;
    SitesSay said;
    for (SiteNumber site = 0; site < sites_; ++site) {
      SiteSums& sums = said.sums.emplace_back();
      sums.cells = cells_of(1.0 / (1 + below(50)), below(100));
      for (std::size_t at = 0; at < comparison_.of_node[site].size(); ++at) {
        sums.row_hashes.push_back(alike ? 5 : hashes[below(4)]);
      }
      for (std::uint32_t tensor = 0; tensor < plan_.tensors.size(); ++tensor) {
        const Comparison::Box box{tensor, 0};
        said.box_hashes[{site, box}] = hashes[below(4)];
        said.squares[{site, box}] = std::array{0.0, 4.0, 4.0, 9.0, 4.0000000000000009}[below(5)];
        if (below(3) == 0) {
          sums.findings.absent.emplace_back(tensor, 1);
        } else if (below(4) == 0) {
          sums.findings.nonfinite.push_back({tensor, 1 + site, {{site, 1 + site}}});
          sums.findings.nonfinite_total += 1 + site;
        }
      }
    }
    return said;
  }

  template <typename T>
  void shuffle(std::vector<T>& items) {
    std::ranges::shuffle(items, random_);
  }

 private:
  std::mt19937 random_;
  std::uint32_t sites_;
  plan::Plan plan_;
  Comparison comparison_;
};

/// A coordinator and its nodes, which have begun.
class PlacedSites {
 public:
  PlacedSites(RandomSites& world, std::vector<NodeNumber> node_of_site)
      : world_(world), node_of_site_(std::move(node_of_site)) {
    for (NodeNumber node = 0; node < nodes(); ++node) {
      if (node > 0) {
        (void)machine_.on_link(kNow, node, "10.0.0." + std::to_string(node));
      }
      (void)by(node, join_of(node));
    }
    machine_.on_comparison(
        kEpoch, std::make_shared<const plan::Plan>(world.plan()), std::make_shared<const Comparison>(world.comparison())
    );
    for (const ToCoordinator& message :
         {ToCoordinator(PeerReady{kEpoch, "plan", "policies", false}), ToCoordinator(PeerConnected{kEpoch})}) {
      for (NodeNumber node = 0; node < nodes(); ++node) {
        (void)by(node, message);
      }
    }
  }

  /// A step that all nodes vote for.
  PeerDecision decide(std::uint64_t word, const SitesSay& said) {
    std::vector<std::pair<NodeNumber, ToCoordinator>> messages;
    for (NodeNumber node = 0; node < nodes(); ++node) {
      PeerAsk ask = ask_of(word);
      ask.sites.clear();
      for (const SiteNumber site : sites_of(node)) {
        ask.sites.push_back(said.sums[site]);
      }
      messages.emplace_back(node, std::move(ask));
    }
    CoordinatorActions actions = in_any_order(std::move(messages));
    while (is_told<PeerCompare>(actions)) {
      actions = in_any_order(answers_to(actions, word, said));
    }
    PeerDecision decision = sent<PeerDecision>(actions);
    for (NodeNumber node = 0; node < nodes(); ++node) {
      (void)by(node, PeerVote{word, "result"});
    }
    return decision;
  }

 private:
  [[nodiscard]] NodeNumber nodes() const { return std::ranges::max(node_of_site_) + 1; }

  [[nodiscard]] std::vector<SiteNumber> sites_of(NodeNumber node) const {
    std::vector<SiteNumber> sites;
    for (SiteNumber site = 0; site < node_of_site_.size(); ++site) {
      if (node_of_site_[site] == node) {
        sites.push_back(site);
      }
    }
    return sites;
  }

  [[nodiscard]] PeerJoin join_of(NodeNumber node) const {
    PeerJoin join = LedCoordinator::join_of(node, node);
    join.world_size = world_.sites();
    join.ranks.clear();
    join.declared->by_content[0].ranks.clear();
    for (const SiteNumber site : sites_of(node)) {
      join.ranks.push_back(site);
      join.declared->by_content[0].ranks.emplace_back(site, 1);
      join.declared->devices.push_back(static_cast<std::uint32_t>(join.ranks.size()));
    }
    join.local_world_size = static_cast<std::int64_t>(join.ranks.size());
    return join;
  }

  CoordinatorActions by(NodeNumber node, ToCoordinator message) {
    return node == 0 ? machine_.on_own(kNow, std::move(message)) : machine_.on_message(kNow, node, std::move(message));
  }

  /// What the last of them leads to; the others lead to nothing.
  CoordinatorActions in_any_order(std::vector<std::pair<NodeNumber, ToCoordinator>> messages) {
    world_.shuffle(messages);
    CoordinatorActions actions;
    for (auto& [node, message] : messages) {
      EXPECT_EQ(words_of(actions), "");
      actions = by(node, std::move(message));
    }
    return actions;
  }

  template <typename Message>
  static bool is_told(const CoordinatorActions& actions) {
    return std::ranges::any_of(actions, [](const CoordinatorAction& action) {
      const auto* tell = std::get_if<TellOwnMember>(&action);
      const auto* send = std::get_if<SendToMember>(&action);
      return (tell != nullptr && std::holds_alternative<Message>(tell->message)) ||
             (send != nullptr && std::holds_alternative<Message>(send->message));
    });
  }

  /// Each site that has some of it says it; these are on the nodes that are told, and no node is told in vain.
  std::vector<std::pair<NodeNumber, ToCoordinator>> answers_to(
      const CoordinatorActions& actions, std::uint64_t word, const SitesSay& said
  ) const {
    const PeerCompare wanted = sent<PeerCompare>(actions);
    std::vector<std::pair<NodeNumber, ToCoordinator>> answers;
    std::set<NodeNumber> answering;
    for (NodeNumber node = 0; node < nodes(); ++node) {
      const std::vector<SiteNumber> sites = sites_of(node);
      for (std::uint32_t index = 0; index < sites.size(); ++index) {
        const device::ReadRows read = rows_wanted_of(world_.comparison(), sites[index], wanted);
        if (!read.classes.empty() || !read.boxes.empty()) {
          answering.insert(node);
          answers.emplace_back(node, rows_of(sites[index], index, read, word, said));
        }
      }
    }
    EXPECT_EQ(actions.size(), answering.size());
    return answers;
  }

  [[nodiscard]] PeerRows rows_of(
      SiteNumber site, std::uint32_t index, const device::ReadRows& read, std::uint64_t word, const SitesSay& said
  ) const {
    PeerRows rows{word, {}, {}, index};
    for (const std::uint32_t number : read.classes) {
      for (const Comparison::Box& box : world_.comparison().classes[world_.comparison().of_node[site][number]].boxes) {
        rows.box_hashes.push_back(said.box_hashes.at({site, box}));
      }
    }
    for (const Comparison::Box& box : read.boxes) {
      rows.rows.push_back(row_of(box.first, box.second, site, said.squares.at({site, box})));
    }
    return rows;
  }

  RandomSites& world_;
  std::vector<NodeNumber> node_of_site_;
  SomeDeclarations declarations_;
  CoordinatorMachine machine_{{{0, "job"}, "a", "1", "n0", 1}, declarations_};
};

void expect_same_decision(const PeerDecision& a, const PeerDecision& b) {
  ASSERT_TRUE(a.cells && b.cells);
  const auto sums = [](const NodeCells& cells) {
    return std::tuple(
        cells.whole.power_sum.high, cells.whole.power_sum.low, cells.whole.maximum, cells.counted_elements
    );
  };
  EXPECT_EQ(sums(*a.cells), sums(*b.cells));
  EXPECT_EQ(a.sums_differ, b.sums_differ);
  EXPECT_EQ(a.findings.absent, b.findings.absent);
  EXPECT_EQ(a.findings.nonfinite_total, b.findings.nonfinite_total);
  ASSERT_EQ(a.findings.missing.size(), b.findings.missing.size());
  for (std::size_t at = 0; at < a.findings.missing.size(); ++at) {
    EXPECT_EQ(a.findings.missing[at].tensor, b.findings.missing[at].tensor);
    EXPECT_EQ(a.findings.missing[at].ranks, b.findings.missing[at].ranks);
  }
  ASSERT_EQ(a.findings.divergence.size(), b.findings.divergence.size());
  for (std::size_t at = 0; at < a.findings.divergence.size(); ++at) {
    EXPECT_EQ(a.findings.divergence[at].tensor, b.findings.divergence[at].tensor);
    EXPECT_EQ(a.findings.divergence[at].ranks, b.findings.divergence[at].ranks);
    EXPECT_EQ(a.findings.divergence[at].suspects, b.findings.divergence[at].suspects);
  }
  ASSERT_EQ(a.findings.nonfinite.size(), b.findings.nonfinite.size());
  for (std::size_t at = 0; at < a.findings.nonfinite.size(); ++at) {
    EXPECT_EQ(a.findings.nonfinite[at].tensor, b.findings.nonfinite[at].tensor);
    EXPECT_EQ(a.findings.nonfinite[at].inputs, b.findings.nonfinite[at].inputs);
  }
}

TEST(CoordinatorSitesRandom, decisions_are_those_of_nodes_with_one_site_each) {
  std::size_t diverged = 0;
  std::size_t shared = 0;
  for (std::uint32_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    RandomSites world(seed);
    std::vector<NodeNumber> node_of_site = world.nodes();
    shared += std::ranges::max(node_of_site) + 1 < world.sites() ? 1 : 0;
    PlacedSites on_nodes(world, std::move(node_of_site));
    PlacedSites apart(world, world.comparison().node_of_rank);
    for (std::uint64_t word = kWord; word < kWord + 3; ++word) {
      const SitesSay said = world.say();
      const PeerDecision decision = on_nodes.decide(word, said);
      expect_same_decision(decision, apart.decide(word, said));
      diverged += decision.findings.divergence.empty() ? 0 : 1;
    }
  }
  EXPECT_GT(shared, 200u);
  EXPECT_GT(diverged, 100u);
}

}  // namespace
}  // namespace gradsync::engine
