#pragma once
// What a coordinator remembers of each node, and what it asks of all of them at each JOIN, counted as they come and go:
// a job of thousands of nodes has as many JOINs for each epoch.
//
// Invariant: the roll is what `add` makes of each member that there is, in any order. What it counts of a member
// changes nowhere but between `remove` and `add` of it (`CoordinatorMachine::change`).

#include "engine/peers/peer_message.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace gradsync::engine {

using LinkNumber = std::uint64_t;  ///< also its challenge: a later link has a higher one

/// What is known of one node. It is replaced as a whole when the node joins anew.
struct CoordinatorMember {
  PeerJoin join;
  LinkNumber link = 0;      ///< 0: it has ended, or the member is that of this daemon
  LinkNumber newest = 0;    ///< the link of the last JOIN that was taken, also when it has ended
  std::uint32_t count = 0;  ///< of that JOIN
  std::uint64_t told = 0;   ///< the last epoch whose PREPARE went to it over this link
  bool own = false;
  bool joined = false;                    ///< in this gathering
  bool superseded = false;                ///< it was told that a later start of the job goes on
  std::optional<NodeNumber> number = {};  ///< in the roster of the epoch that stands
  std::vector<std::int64_t> paused = {};
  bool told_paused = false;  ///< it knows that a paused rank of another node is waited for

  [[nodiscard]] bool lives() const { return own || link != 0; }

  [[nodiscard]] bool declared() const { return joined && join.declared.has_value(); }
};

class CoordinatorRoll {
 public:
  struct Living {
    std::size_t nodes = 0;
    std::int64_t local_ranks = 0;  ///< local_world_size of all

    friend bool operator==(const Living&, const Living&) = default;
  };

  /// Its JOIN counts: `lives`, `joined` and what it says. A member that is new counts for nothing.
  void add(const CoordinatorMember& member);
  void remove(const CoordinatorMember& member);

  /// The node_id of the member of this daemon; empty: it has not joined.
  [[nodiscard]] const std::string& own() const { return own_; }

  /// The nodes that live and are of this start of the job.
  [[nodiscard]] Living living(std::int64_t restart_count) const;

  /// Whether a node that lives is of an earlier start.
  [[nodiscard]] bool has_older(std::int64_t restart_count) const;

  /// The node that lives and has a rank which this JOIN of another node claims for the same start; empty: none.
  [[nodiscard]] std::string holder_of(const PeerJoin& join) const;

  /// How many ranks are on nodes that have joined and declared.
  [[nodiscard]] std::size_t declared_ranks() const { return declared_ranks_; }

  /// By attempt, the nodes that have joined and are in doubt about it.
  [[nodiscard]] const std::map<std::uint64_t, std::set<std::string>>& doubts() const { return doubts_; }

  /// Whether the record of a node that has joined, but for that of this daemon, has this attempt as done last.
  [[nodiscard]] bool has_done(std::uint64_t word) const { return done_.contains(word); }

  friend bool operator==(const CoordinatorRoll&, const CoordinatorRoll&) = default;

 private:
  using Holder = std::tuple<std::int64_t, std::int64_t, std::string>;  ///< restart_count, rank, node_id

  std::string own_;
  std::map<std::int64_t, Living> living_;  ///< by restart_count; of each there is a node
  std::set<Holder> holders_;
  std::size_t declared_ranks_ = 0;
  std::map<std::uint64_t, std::set<std::string>> doubts_;  ///< none is empty
  std::map<std::uint64_t, std::size_t> done_;              ///< how many say so; of each there is one
};

}  // namespace gradsync::engine
