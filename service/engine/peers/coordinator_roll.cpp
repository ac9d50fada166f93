#include "engine/peers/coordinator_roll.hpp"

namespace gradsync::engine {

void CoordinatorRoll::add(const CoordinatorMember& member) {
  const PeerJoin& join = member.join;
  if (member.own) {
    own_ = join.node_id;
  }
  if (member.lives()) {
    Living& living = living_[join.restart_count];
    ++living.nodes;
    living.local_ranks += join.local_world_size;
    for (const std::int64_t rank : join.ranks) {
      holders_.emplace(join.restart_count, rank, join.node_id);
    }
  }
  if (member.declared()) {
    declared_ranks_ += join.ranks.size();
  }
  if (member.joined && join.words.doubt != 0) {
    doubts_[join.words.doubt].insert(join.node_id);
  }
  if (member.joined && !member.own && join.words.done != 0) {
    ++done_[join.words.done];
  }
}

void CoordinatorRoll::remove(const CoordinatorMember& member) {
  const PeerJoin& join = member.join;
  if (member.own) {
    own_.clear();
  }
  if (member.lives()) {
    const auto living = living_.find(join.restart_count);
    living->second.local_ranks -= join.local_world_size;
    if (--living->second.nodes == 0) {
      living_.erase(living);
    }
    for (const std::int64_t rank : join.ranks) {
      holders_.erase({join.restart_count, rank, join.node_id});
    }
  }
  if (member.declared()) {
    declared_ranks_ -= join.ranks.size();
  }
  if (member.joined && join.words.doubt != 0) {
    const auto doubt = doubts_.find(join.words.doubt);
    doubt->second.erase(join.node_id);
    if (doubt->second.empty()) {
      doubts_.erase(doubt);
    }
  }
  if (member.joined && !member.own && join.words.done != 0) {
    if (const auto done = done_.find(join.words.done); --done->second == 0) {
      done_.erase(done);
    }
  }
}

CoordinatorRoll::Living CoordinatorRoll::living(std::int64_t restart_count) const {
  const auto found = living_.find(restart_count);
  return found == living_.end() ? Living{} : found->second;
}

bool CoordinatorRoll::has_older(std::int64_t restart_count) const {
  return !living_.empty() && living_.begin()->first < restart_count;
}

std::string CoordinatorRoll::holder_of(const PeerJoin& join) const {
  for (const std::int64_t rank : join.ranks) {
    for (auto at = holders_.lower_bound({join.restart_count, rank, {}});
         at != holders_.end() && std::get<0>(*at) == join.restart_count && std::get<1>(*at) == rank;
         ++at) {
      if (std::get<2>(*at) != join.node_id) {
        return std::get<2>(*at);
      }
    }
  }
  return {};
}

}  // namespace gradsync::engine
