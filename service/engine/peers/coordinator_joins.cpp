// Which nodes may take part, and what the coordinator remembers of them.

#include "base/text/text.hpp"
#include "engine/peers/coordinator_machine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace gradsync::engine {

namespace {

bool is_loopback(const std::string& address) { return address.starts_with("127.") || address == "::1"; }

std::string named(const PeerJoin& join) {
  return join.address.empty() ? fmt::format("node '{}'", join.node)
                              : fmt::format("node '{}' ({})", join.node, join.address);
}

Error refused(ErrorCode code, std::string message, std::string hint, const PeerJoin& join) {
  Error error = make_error(code, std::move(message), std::move(hint));
  error.node = join.node;
  return error;
}

Error is_superseded(const PeerJoin& older, const PeerJoin& newer) {
  return refused(
      ErrorCode::Superseded,
      fmt::format(
          "{} has restart_count {}, and {} has {}", named(older), older.restart_count, named(newer), newer.restart_count
      ),
      "a newer start of the job goes on: end this one",
      older
  );
}

/// The ranks of the spans, or nothing where one is said twice or is none of the job's.
std::optional<std::vector<std::int64_t>> ranks_of(const std::vector<DeclaredRanks>& by_content, std::int64_t world) {
  std::vector<std::int64_t> ranks;
  for (const DeclaredRanks& declared : by_content) {
    for (const auto& [first, count] : declared.ranks) {
      if (first < 0 || first >= world || count < 1 || count > world - first) {
        return std::nullopt;
      }
      for (std::int64_t rank = first; rank < first + count; ++rank) {
        ranks.push_back(rank);
      }
    }
  }
  std::ranges::sort(ranks);
  return std::ranges::adjacent_find(ranks) == ranks.end() ? std::optional(std::move(ranks)) : std::nullopt;
}

/// What a JOIN says of itself that cannot be.
std::optional<std::string> contradiction_in(const PeerJoin& join) {
  std::vector<std::int64_t> ranks = join.ranks;
  std::ranges::sort(ranks);
  if (std::ranges::adjacent_find(ranks) != ranks.end()) {
    return "names a rank twice";
  }
  if (!ranks.empty() && (ranks.front() < 0 || ranks.back() >= join.world_size)) {
    return fmt::format("names a rank outside of world_size {}", join.world_size);
  }
  if (static_cast<std::int64_t>(ranks.size()) > join.local_world_size) {
    return fmt::format("has {} ranks and local_world_size {}", ranks.size(), join.local_world_size);
  }
  if (!join.declared) {
    return std::nullopt;
  }
  if (ranks.empty() || ranks_of(join.declared->by_content, join.world_size) != ranks) {
    return "declares other ranks than are attached";
  }
  const auto lists = join.declared->weight_fingerprints.size();
  const bool listed = std::ranges::all_of(join.declared->by_content, [lists](const DeclaredRanks& each) {
    return !each.weights || *each.weights < lists;
  });
  return listed ? std::nullopt : std::optional<std::string>("names fingerprints that it does not have");
}

}  // namespace

void CoordinatorMachine::on_join(TimePoint now, LinkNumber link, PeerJoin join, Actions& actions) {
  const std::string& joined_as = links_.at(link).node_id;
  if (join.challenge != link || (!joined_as.empty() && joined_as != join.node_id)) {
    lose(now, link, "it joined with the challenge of another link, or as another node", actions);
    actions.emplace_back(CloseLink{link});
    return;
  }
  if (const auto known = members_.find(join.node_id); known != members_.end()) {
    const Member& member = known->second;
    if (link < member.newest) {
      close(link, actions);  // its sender lived before the one whose JOIN was taken
      return;
    }
    if (link == member.newest && join.count <= member.count) {
      return;
    }
  }
  if (const auto waits = deferred_.find(link); waits != deferred_.end() && join.count <= waits->second.join.count) {
    return;
  }
  if (const std::optional<Error> error = refusal_of(link, join)) {
    refuse(now, link, *error, actions);
  } else if (const Member* holder = holder_of(join)) {
    const bool speaks = holder->own || now - links_.at(holder->link).heard <= 2 * kBeat;
    const TimePoint until = speaks ? now : now + kHolder;
    deferred_[link] = Deferred{std::move(join), until};
    wake_at(until);
  } else {
    deferred_.erase(link);
    take_join(now, link, std::move(join), actions);
  }
}

/// Ranks of an earlier start may attach here when the other nodes are at the next one already.
void CoordinatorMachine::on_own_join(TimePoint now, PeerJoin join, Actions& actions) {
  const auto newer = std::ranges::find_if(members_, [&join](const auto& each) {
    return each.second.lives() && each.second.join.restart_count > join.restart_count;
  });
  if (newer != members_.end()) {
    actions.emplace_back(TellOwnMember{PeerRefused{is_superseded(join, newer->second.join)}});
    return;
  }
  refuse_others(now, join, actions);
  take_join(now, 0, std::move(join), actions);
}

std::optional<Error> CoordinatorMachine::refusal_of(LinkNumber link, const PeerJoin& join) const {
  if (const std::string& seen = links_.at(link).seen_address; join.address != seen) {
    return refused(
        ErrorCode::NodeRefused,
        fmt::format(
            "node '{}' has the address {}, and node '{}' sees it as {}", join.node, join.address, options_.node, seen
        ),
        "there must be no translation of addresses between nodes",
        join
    );
  }
  if (const std::optional<std::string> what = contradiction_in(join)) {
    return refused(ErrorCode::InternalError, fmt::format("{} {}", named(join), *what), {}, join);
  }
  for (const Member* other : compared_with(join)) {
    if (std::optional<Error> error = difference_of(join, *other)) {
      return error;
    }
  }
  auto [living, local] = roll_.living(join.restart_count);
  if (const auto known = members_.find(join.node_id);
      known != members_.end() && known->second.lives() && known->second.join.restart_count == join.restart_count) {
    --living;
    local -= known->second.join.local_world_size;
  }
  ++living;
  local += join.local_world_size;
  if (local > join.world_size) {
    return refused(
        ErrorCode::JobMismatch,
        fmt::format("with {} the nodes have {} ranks, and world_size is {}", named(join), local, join.world_size),
        "local_world_size of all nodes together is world_size",
        join
    );
  }
  if (living > options_.most_nodes) {
    return refused(
        ErrorCode::LimitExceeded, fmt::format("{} is one node more than {}", named(join), options_.most_nodes), {}, join
    );
  }
  return std::nullopt;
}

/// Whom of the other nodes that live and are not older a JOIN is compared with: the member of this daemon, and one
/// more. All but that member agree with each other, as each was compared so when it came.
std::vector<const CoordinatorMachine::Member*> CoordinatorMachine::compared_with(const PeerJoin& join) const {
  std::vector<const Member*> found;
  const auto counts = [&join](const Member& member) {
    return member.lives() && member.join.node_id != join.node_id && member.join.restart_count >= join.restart_count;
  };
  if (const auto own = members_.find(roll_.own()); own != members_.end() && counts(own->second)) {
    found.push_back(&own->second);
  }
  const auto other =
      std::ranges::find_if(members_, [&](const auto& each) { return !each.second.own && counts(each.second); });
  if (other != members_.end()) {
    found.push_back(&other->second);
  }
  return found;
}

/// Why a node cannot be in one job with another that is not older.
std::optional<Error> CoordinatorMachine::difference_of(const PeerJoin& join, const Member& member) const {
  const PeerJoin& other = member.join;
  if (join.restart_count < other.restart_count) {
    return is_superseded(join, other);
  }
  if (join.world_size != other.world_size || join.meshes != other.meshes) {
    return refused(
        ErrorCode::JobMismatch,
        fmt::format(
            "{} has world_size {}, and {} has {}{}",
            named(join),
            join.world_size,
            named(other),
            other.world_size,
            join.world_size == other.world_size ? ", with other meshes" : ""
        ),
        "use the same world size and meshes on all nodes",
        join
    );
  }
  if (!member.own && !join.address.empty() && is_loopback(join.address) != is_loopback(other.address)) {
    return refused(
        ErrorCode::NodeRefused,
        fmt::format(
            "{} and {}: a link over loopback and one over a network do not go together", named(join), named(other)
        ),
        "name an address of rank 0's node that all nodes reach",
        join
    );
  }
  return std::nullopt;
}

/// What node 0 says of the job counts, also where others came before it.
void CoordinatorMachine::refuse_others(TimePoint now, const PeerJoin& own, Actions& actions) {
  std::vector<std::pair<LinkNumber, Error>> wrong;
  for (const auto& [id, member] : members_) {
    if (!member.own && member.link != 0 && member.join.restart_count == own.restart_count &&
        (member.join.world_size != own.world_size || member.join.meshes != own.meshes)) {
      Member node_0;
      node_0.join = own;
      node_0.own = true;
      wrong.emplace_back(member.link, *difference_of(member.join, node_0));
    }
  }
  for (const auto& [link, error] : wrong) {
    refuse(now, link, error, actions);
  }
}

const CoordinatorMachine::Member* CoordinatorMachine::holder_of(const PeerJoin& join) const {
  const auto holder = members_.find(roll_.holder_of(join));
  return holder == members_.end() ? nullptr : &holder->second;
}

/// Those that wait for a rank are taken when its holder's link has ended, and refused when the holder speaks.
void CoordinatorMachine::retry_deferred(TimePoint now, Actions& actions) {
  if (deferred_.empty()) {
    return;
  }
  for (const auto& [link, deferred] : std::exchange(deferred_, {})) {
    const Member* holder = holder_of(deferred.join);
    if (!links_.contains(link)) {
      continue;
    }
    if (holder == nullptr) {
      on_join(now, link, deferred.join, actions);
    } else if (holder->own || deferred.until <= now || links_.at(holder->link).heard == now) {
      const Error error = refused(
          ErrorCode::RankInUse,
          fmt::format("{} holds a rank that {} claims", named(holder->join), named(deferred.join)),
          "end one of the two, or attach with a higher restart_count",
          holder->join
      );
      refuse(now, link, error, actions);
    } else {
      deferred_.emplace(link, deferred);
    }
  }
}

void CoordinatorMachine::supersede(TimePoint now, const PeerJoin& join, Actions& actions) {
  if (!roll_.has_older(join.restart_count)) {
    return;
  }
  for (auto& [id, member] : members_) {
    if (id == join.node_id || member.superseded || member.join.restart_count >= join.restart_count) {
      continue;
    }
    const Error error = is_superseded(member.join, join);
    member.superseded = true;
    change(member, [&each = member] { each.joined = false; });
    if (member.own) {
      actions.emplace_back(TellOwnMember{PeerRefused{error}});
    } else {
      refuse(now, member.link, error, actions);
    }
  }
}

/// Nodes that are gone are remembered for their challenges. Of a node without a link that is older than the oldest
/// that may still join nothing can come.
void CoordinatorMachine::forget_dead() {
  if (members_.size() <= 2 * options_.most_nodes) {
    return;
  }
  std::erase_if(members_, [this](const auto& each) {
    const Member& member = each.second;
    return !member.own && member.link == 0 && std::ranges::all_of(links_, [&](const auto& link) {
      return link.first > member.newest || !link.second.node_id.empty();
    });
  });
}

void CoordinatorMachine::take_join(TimePoint now, LinkNumber link, PeerJoin join, Actions& actions) {
  forget_dead();
  Member& member = members_[join.node_id];
  const bool again = member.link == link && member.join.incarnation == join.incarnation;
  const std::uint64_t told = again ? member.told : 0;
  if (told != 0 && join.epoch <= told) {
    join.declared.reset();  // it was sent before that epoch's PREPARE came: behind END comes another
  }
  if (member.link != link) {
    close(member.link, actions);
    change(member, [&] { member.link = 0; });
  }
  if (state_ != State::Gathering) {
    Error error = make_error(
        again ? ErrorCode::StaleEpoch : ErrorCode::NodeLost,
        again ? fmt::format("the ranks of node '{}' changed, or declared anew", join.node)
              : fmt::format("the daemon of node '{}' was restarted, or its link ended", join.node),
        again ? "every rank has to call gradients.declare again" : "the epoch forms again with its next life"
    );
    error.node = join.node;
    error.ranks = join.ranks;
    end_epoch(now, std::move(error), actions);
  }
  supersede(now, join, actions);
  change(member, [&] {
    member = Member{};
    member.own = link == 0;
    member.link = member.newest = link;
    member.count = join.count;
    member.told = told;
    member.joined = true;
    member.join = std::move(join);
  });
  if (link != 0) {
    links_.at(link).node_id = member.join.node_id;
  } else if (!own_words_.known) {
    own_words_ = member.join.words;  // what is done from here on, this machine knows first
    own_words_.doubt = 0;
  }
  want_unknown(now, member, actions);
  rule(now, actions);
  try_prepare(now, actions);
}

void CoordinatorMachine::want_unknown(TimePoint now, const Member& member, Actions& actions) {
  PeerWant want;
  if (member.join.declared && !member.own) {
    for (const DeclaredRanks& declared : member.join.declared->by_content) {
      if (!declarations_.find(declared.hash)) {
        want.hashes.push_back(declared.hash);
      }
    }
  }
  if (!want.hashes.empty()) {
    send(now, member, std::move(want), actions);
  }
}

}  // namespace gradsync::engine
