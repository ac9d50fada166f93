#pragma once
// A WebSocket as the message handler knows it. Thread: io only. Internal to net.

#include "net/server_context.hpp"

#include <memory>

namespace gradsync::net {

/// Lasts from the upgrade to the last message: the handler hears `on_open` at its begin, and `on_close` exactly once at
/// its end. After that the handler may still hear when the peer's process ends, if it wants to.
class HandlerRegistration {
 public:
  HandlerRegistration(
      ContextPtr context,
      ConnectionId id,
      const PeerIdentity& peer,
      UniqueFd process,
      std::shared_ptr<WebSocketPort> port
  );
  ~HandlerRegistration();
  HandlerRegistration(const HandlerRegistration&) = delete;
  HandlerRegistration& operator=(const HandlerRegistration&) = delete;

 private:
  bool tell_close();

  ContextPtr context_;
  ConnectionId id_;
  PeerIdentity peer_;
};

}  // namespace gradsync::net
