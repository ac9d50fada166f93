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
#include <utility>

namespace gradsync::net {

/// Which pool of places a connection takes one of.
enum class Pool : std::uint8_t { Local, Tcp, Health, Peer };

class ConnectionPools {
 public:
  static constexpr std::size_t kTcp = 256;
  static constexpr std::size_t kHealth = 64;
  static constexpr std::size_t kPeer = 256;          ///< links to other daemons that have not joined
  static constexpr std::size_t kPeerOfAddress = 16;  ///< of them

  /// `local`: the most over the unix sockets.
  ConnectionPools(std::size_t local, std::uint32_t own_uid) : local_(local, own_uid) {}

  /// Why the peer gets no place over the unix sockets, or none. `closing`: its uid's that are not closed yet.
  [[nodiscard]] std::optional<Error> refuse_local(const PeerIdentity& peer, std::size_t closing) const;

  /// One of these makes room for the next connection from `address`: those of the address that has most in a full pool,
  /// or of `address` where it has as many as one may; the oldest first. Empty: there is room. Over TCP nobody is
  /// refused for what others hold. Behind those with most come others that have more than `address` will have.
  [[nodiscard]] std::list<ConnectionId> in_the_way(Pool pool, const std::string& address) const;
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
    std::size_t most = 0;
    std::size_t most_of_address = 0;
    std::size_t held = 0;
    std::map<std::string, std::list<ConnectionId>> of_address = {};
  };

  [[nodiscard]] const TcpPool& tcp_pool(Pool pool) const {
    return pool == Pool::Tcp ? tcp_ : pool == Pool::Peer ? peer_ : health_;
  }

  [[nodiscard]] TcpPool& tcp_pool(Pool pool) { return const_cast<TcpPool&>(std::as_const(*this).tcp_pool(pool)); }

  FairBudget local_;
  std::unordered_map<ConnectionId, Place> places_;
  TcpPool tcp_{kTcp, kTcp};
  TcpPool health_{kHealth, kHealth};
  TcpPool peer_{kPeer, kPeerOfAddress};
};

}  // namespace gradsync::net
