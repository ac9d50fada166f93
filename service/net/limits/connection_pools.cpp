#include "net/limits/connection_pools.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace gradsync::net {

std::optional<Error> ConnectionPools::refuse_local(const PeerIdentity& peer, std::size_t closing) const {
  const auto refused = local_.refuse({peer.uid, peer.pid}, 1, closing);
  if (!refused) {
    return std::nullopt;
  }
  return make_error(
      ErrorCode::LimitExceeded,
      fmt::format(
          "{} has {} connections open, the limit is {} ([limits] connections={})",
          refused->whose,
          refused->held,
          refused->most,
          local_.most()
      ),
      "close some, try again later, or raise the limit"
  );
}

std::list<ConnectionId> ConnectionPools::in_the_way(Pool pool, const std::string& address) const {
  const TcpPool& asked = tcp_pool(pool);
  const auto own = asked.of_address.find(address);
  const std::size_t held = own == asked.of_address.end() ? 0 : own->second.size();
  if (held >= asked.most_of_address) {
    return own->second;
  }
  if (asked.held < asked.most) {
    return {};
  }
  std::vector<const std::list<ConnectionId>*> others;
  for (const auto& [other, connections] : asked.of_address) {
    if (connections.size() > held + 1) {
      others.push_back(&connections);
    }
  }
  std::stable_sort(others.begin(), others.end(), [](const auto* x, const auto* y) { return x->size() > y->size(); });
  std::list<ConnectionId> candidates = others.empty() ? of_largest_address(pool) : std::list<ConnectionId>{};
  for (const std::list<ConnectionId>* connections : others) {
    candidates.insert(candidates.end(), connections->begin(), connections->end());
  }
  return candidates;
}

std::list<ConnectionId> ConnectionPools::of_largest_address(Pool pool) const {
  const TcpPool& asked = tcp_pool(pool);
  if (asked.of_address.empty()) {
    return {};
  }
  return std::max_element(
             asked.of_address.begin(),
             asked.of_address.end(),
             [](const auto& x, const auto& y) { return x.second.size() < y.second.size(); }
  )->second;
}

void ConnectionPools::add(ConnectionId connection, Pool pool, const PeerIdentity& peer, const std::string& address) {
  const Holder holder{peer.uid, peer.pid};
  places_[connection] = {pool, holder, address};
  if (pool == Pool::Local) {
    local_.add(holder);
  } else {
    ++tcp_pool(pool).held;
    tcp_pool(pool).of_address[address].push_back(connection);
  }
}

void ConnectionPools::remove(ConnectionId connection) {
  const auto found = places_.find(connection);
  if (found == places_.end()) {
    return;
  }
  const Place& place = found->second;
  if (place.pool == Pool::Local) {
    local_.take(place.holder);
  } else {
    TcpPool& pool = tcp_pool(place.pool);
    --pool.held;
    std::list<ConnectionId>& of_address = pool.of_address[place.address];
    of_address.remove(connection);
    if (of_address.empty()) {
      pool.of_address.erase(place.address);
    }
  }
  places_.erase(found);
}

}  // namespace gradsync::net
