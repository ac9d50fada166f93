#pragma once
// Opens one link to a daemon whose address is known. It resolves the name and tries each of its addresses once; where
// none answers the link ends, and its owner knows when to try again.
//
// Thread: io only. Internal to net.

#include "base/host_port.hpp"
#include "net/peer/link_context.hpp"
#include "net/socket/asio_types.hpp"
#include "net/socket/peer_socket.hpp"

#include <memory>
#include <optional>
#include <string>

namespace gradsync::net {

class PeerConnector : public std::enable_shared_from_this<PeerConnector> {
 public:
  /// `address`: HOST or HOST:PORT.
  PeerConnector(const LinkContextPtr& context, LinkId id, std::string address);

  /// An address that is none ends the link.
  void start();

  /// Not for a link that is open.
  void stop(std::string why);

 private:
  Task<void> run();
  /// Why there is no link; empty: there was one, and it has ended.
  Task<std::string> try_addresses();
  Task<std::string> try_address(NumericAddress address);
  Task<std::string> connect(NumericAddress address);
  Task<std::string> serve();
  /// nullopt: there is no answer yet.
  Task<std::optional<Resolved>> resolve();

  LinkContextPtr context_;
  const LinkId id_;
  const std::string address_;
  std::optional<HostPort> target_;
  std::optional<Resolver::Query> query_;  ///< under way
  std::optional<Resolved> resolved_;
  std::optional<PeerSocket> socket_;  ///< that connects
  std::shared_ptr<PeerLink> link_;
  Timer wait_;
  bool late_ = false;  ///< connecting
  bool linked_ = false;
  bool stopped_ = false;
};

}  // namespace gradsync::net
