#include "engine/peers/roster_by_rank.hpp"

#include "engine/peers/peer_message.hpp"

#include <limits>
#include <map>
#include <utility>

namespace gradsync::engine {

namespace {

constexpr NodeNumber kNobody = std::numeric_limits<NodeNumber>::max();

/// Whether these ranks are of the world, and of nobody else.
bool take(RosterByRank& all, const RankSpan& ranks, std::uint32_t content, NodeNumber node) {
  const auto [first, count] = ranks;
  const auto world = static_cast<std::int64_t>(all.node_of_rank.size());
  if (first < 0 || first >= world || count < 1 || count > world - first) {
    return false;
  }
  for (auto rank = static_cast<std::size_t>(first); rank < static_cast<std::size_t>(first + count); ++rank) {
    if (all.node_of_rank[rank] != kNobody) {
      return false;
    }
    all.node_of_rank[rank] = node;
    all.content_of_rank[rank] = content;
  }
  return true;
}

/// The devices of each node come by its ranks, ascending. Sites are numbered by their lowest ranks.
bool find_sites(RosterByRank& all, const SharedList<RosterNode>& roster) {
  std::vector<std::size_t> seen(roster.size());  // ranks of each node
  std::map<std::pair<NodeNumber, std::uint32_t>, SiteNumber> known;
  all.sites_of_node.resize(roster.size());
  for (const NodeNumber node : all.node_of_rank) {
    const std::vector<std::uint32_t>& devices = roster[node].devices;
    const std::size_t place = seen[node]++;
    if (!devices.empty() && place >= devices.size()) {
      return false;
    }
    const auto [site, added] =
        known.try_emplace({node, devices.empty() ? 0 : devices[place]}, static_cast<SiteNumber>(all.sites.size()));
    if (added) {
      std::vector<SiteNumber>& of_node = all.sites_of_node[node];
      all.sites.push_back({node, static_cast<std::uint32_t>(of_node.size())});
      of_node.push_back(site->second);
    }
    all.site_of_rank.push_back(site->second);
  }
  for (NodeNumber node = 0; node < roster.size(); ++node) {
    if (seen[node] < roster[node].devices.size()) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::shared_ptr<const RosterByRank> roster_by_rank(
    const SharedList<RosterNode>& roster, std::int64_t world_size, std::size_t weight_lists
) {
  auto all = std::make_shared<RosterByRank>();
  all->node_of_rank.resize(static_cast<std::size_t>(world_size), kNobody);
  all->content_of_rank.resize(static_cast<std::size_t>(world_size));
  std::map<RosterByRank::Content, std::uint32_t> known;
  std::int64_t ranks = 0;
  for (NodeNumber node = 0; node < roster.size(); ++node) {
    for (const DeclaredRanks& declared : roster[node].by_content) {
      if (declared.weights && *declared.weights >= weight_lists) {
        return nullptr;
      }
      const auto [content, added] =
          known.try_emplace({declared.hash, declared.weights}, static_cast<std::uint32_t>(known.size()));
      if (added) {
        all->contents.push_back(content->first);
      }
      for (const RankSpan& span : declared.ranks) {
        if (!take(*all, span, content->second, node)) {
          return nullptr;
        }
        ranks += span.second;
      }
    }
  }
  return ranks == world_size && find_sites(*all, roster) ? all : nullptr;
}

}  // namespace gradsync::engine
