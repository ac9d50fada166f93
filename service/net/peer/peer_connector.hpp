#pragma once
// Opens one link to a daemon whose address is known: at once, then again and again until there is a link or the owner
// stops it. Each try resolves the name anew, and tries each of its addresses.
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

/// How long to wait after so many tries that failed, at least one: it doubles up to the longest, times 0.5 where
/// `chance` is 0, to 1 where it is 1. So daemons that lost the same one do not come back all at once.
[[nodiscard]] Duration retry_pause(const PeerOptions& options, unsigned failed, double chance);

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
  Task<std::string> try_once();
  Task<std::string> try_address(NumericAddress address);
  Task<std::string> connect(NumericAddress address);
  Task<std::string> serve();
  /// nullopt: there is no answer yet.
  Task<std::optional<Resolved>> resolve();
  Task<void> pause(unsigned failed);
  void tell(const std::string& why);

  LinkContextPtr context_;
  const LinkId id_;
  const std::string address_;
  std::optional<HostPort> target_;
  std::optional<Resolver::Query> query_;  ///< under way. It keeps its place behind other names when a try gives up
  std::optional<Resolved> resolved_;
  std::optional<PeerSocket> socket_;  ///< that connects
  std::shared_ptr<PeerLink> link_;
  Timer wait_;
  std::string last_why_;  ///< logged
  bool late_ = false;     ///< connecting
  bool linked_ = false;
  bool stopped_ = false;
};

}  // namespace gradsync::net
