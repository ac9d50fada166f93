#pragma once
// A WebSocket as the message handler knows it. Thread: io only. Internal to net.

#include "net/server_context.hpp"

#include <memory>

namespace gradsync::net {

/// From the upgrade to the last message: the handler hears `on_open` at its begin and `on_close` exactly once, at its
/// end, after which the end of the peer's process is still told where the handler wants it.
class KnownConnection {
 public:
  KnownConnection(
      ContextPtr context,
      ConnectionId id,
      const PeerIdentity& peer,
      UniqueFd process,
      std::shared_ptr<WebSocketPort> port
  );
  ~KnownConnection();
  KnownConnection(const KnownConnection&) = delete;
  KnownConnection& operator=(const KnownConnection&) = delete;

 private:
  bool tell_close();

  ContextPtr context_;
  ConnectionId id_;
  PeerIdentity peer_;
};

}  // namespace gradsync::net
