#include "net/limits/connection_pools.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace gradsync::net {

namespace {

template <typename Map, typename Key>
std::size_t held(const Map& map, const Key& key) {
  const auto found = map.find(key);
  return found == map.end() ? 0 : found->second;
}

template <typename Map, typename Key>
void one_less(Map& map, const Key& key) {
  const auto found = map.find(key);
  if (--found->second == 0) {
    map.erase(found);
  }
}

Error too_many(const std::string& who, std::size_t held, std::size_t most, std::size_t limit) {
  return make_error(
      ErrorCode::LimitExceeded,
      fmt::format("{} has {} connections open, the limit is {} ([limits] connections={})", who, held, most, limit),
      "close some, try again later, or raise the limit"
  );
}

}  // namespace

std::optional<Error> ConnectionPools::refuse_local(const PeerIdentity& peer, std::size_t closing) const {
  if (held_local_ >= local_) {
    return too_many("the daemon", held_local_, local_, local_);
  }
  const std::size_t of_one_uid = std::max<std::size_t>(local_ - local_ / 4, 1);
  const std::size_t by_uid = held(of_uid_, peer.uid) + closing;
  if (peer.uid != 0 && peer.uid != own_uid_ && by_uid >= of_one_uid) {
    return too_many(fmt::format("uid {}", peer.uid), by_uid, of_one_uid, local_);
  }
  const std::size_t of_one_process = std::max<std::size_t>(local_ / 2, 1);
  const std::size_t by_process = held(of_process_, Process{peer.uid, peer.pid});
  if (peer.pid != 0 && by_process >= of_one_process) {  // 0: of a pid namespace that is not seen from here
    return too_many(fmt::format("process {}", peer.pid), by_process, of_one_process, local_);
  }
  return std::nullopt;
}

std::list<ConnectionId> ConnectionPools::in_the_way(Pool pool) const {
  const TcpPool& asked = pool == Pool::Tcp ? tcp_ : health_;
  if (asked.held < (pool == Pool::Tcp ? kTcp : kHealth)) {
    return {};
  }
  return of_largest_address(pool);
}

std::list<ConnectionId> ConnectionPools::of_largest_address(Pool pool) const {
  const TcpPool& asked = pool == Pool::Tcp ? tcp_ : health_;
  if (asked.of_address.empty()) {
    return {};
  }
  return std::max_element(
             asked.of_address.begin(),
             asked.of_address.end(),
             [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); }
  )->second;
}

void ConnectionPools::add(ConnectionId connection, Pool pool, const PeerIdentity& peer, const std::string& address) {
  const Process process{peer.uid, peer.pid};
  places_[connection] = {pool, process, address};
  if (pool == Pool::Local) {
    ++held_local_;
    ++of_uid_[peer.uid];
    ++of_process_[process];
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
    --held_local_;
    one_less(of_uid_, place.process.first);
    one_less(of_process_, place.process);
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
