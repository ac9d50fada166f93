#pragma once
// How many connections each entrance, each uid, each process and each address may have, so that no one of them takes
// the places of the others. Pure. Thread: io only. Internal to net.

#include "base/fair_budget.hpp"
#include "net/types.hpp"

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>

namespace gradsync::net {

/// Which pool of places a connection takes one of.
enum class Pool : std::uint8_t { Local, Tcp, Health };

class ConnectionPools {
 public:
  static constexpr std::size_t kTcp = 256;
  static constexpr std::size_t kHealth = 64;

  /// `local`: the most over the unix sockets.
  ConnectionPools(std::size_t local, std::uint32_t own_uid) : local_(local, own_uid) {}

  /// Why the peer gets no place over the unix sockets, or none. `closing`: its uid's that are not closed yet.
  [[nodiscard]] std::optional<Error> refuse_local(const PeerIdentity& peer, std::size_t closing) const;

  /// The connections of the address that has most in a full pool, the oldest first: one of them makes room for the
  /// next. Empty: there is room. Over TCP nobody is refused for what others hold.
  [[nodiscard]] std::list<ConnectionId> in_the_way(Pool pool) const;
  /// The same where the pool is not full, because the daemon has no descriptors left.
  [[nodiscard]] std::list<ConnectionId> of_largest_address(Pool pool) const;

  void add(ConnectionId connection, Pool pool, const PeerIdentity& peer, const std::string& address);
  void remove(ConnectionId connection);

 private:
  struct Place {
    Pool pool = Pool::Local;
    Holder holder;
    std::string address;
  };

  struct TcpPool {
    std::size_t held = 0;
    std::map<std::string, std::list<ConnectionId>> of_address;
  };

  [[nodiscard]] TcpPool& tcp_pool(Pool pool) { return pool == Pool::Tcp ? tcp_ : health_; }

  FairBudget local_;
  std::unordered_map<ConnectionId, Place> places_;
  TcpPool tcp_;
  TcpPool health_;
};

}  // namespace gradsync::net
