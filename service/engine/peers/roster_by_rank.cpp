#include "engine/peers/roster_by_rank.hpp"

#include "engine/peers/peer_message.hpp"

#include <limits>
#include <map>

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
  return ranks == world_size ? all : nullptr;
}

}  // namespace gradsync::engine
