#pragma once
// What the roster of an epoch says, by rank: made once for all that are told one and the same roster. Pure.

#include "base/shared_list.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace gradsync::engine {

struct RosterNode;

struct RosterByRank {
  /// What some ranks declared.
  struct Content {
    std::string hash;
    std::optional<std::uint32_t> weights;

    friend bool operator==(const Content&, const Content&) = default;
    friend auto operator<=>(const Content&, const Content&) = default;
  };

  std::vector<Content> contents;               ///< each once, in the order of nodes
  std::vector<std::uint32_t> content_of_rank;  ///< index into them
  std::vector<std::uint32_t> node_of_rank;

  /// Where gradients of some ranks of a node are summed.
  struct Site {
    std::uint32_t node = 0;
    std::uint32_t index = 0;  ///< among the sites of the node
  };

  std::vector<std::uint32_t> site_of_rank;                ///< index into `sites`
  std::vector<Site> sites;                                ///< by SiteNumber
  std::vector<std::vector<std::uint32_t>> sites_of_node;  ///< ascending
};

/// Null: the roster does not have each rank of the world once, names other than so many lists of fingerprints, or does
/// not say of each rank of a node on which device it is, where it says so of one.
[[nodiscard]] std::shared_ptr<const RosterByRank> roster_by_rank(
    const SharedList<RosterNode>& roster, std::int64_t world_size, std::size_t weight_lists
);

}  // namespace gradsync::engine
