#pragma once
// One link to another daemon, from the handshake of its WebSocket to its end. Texts go out in order through a bounded
// queue, and come in one at a time. What ends a link is final: the sink hears of it once, with the reason, and nothing
// more of it is read.
//
// Thread: io only. Internal to net.

#include "net/peer/link_context.hpp"
#include "net/server_context.hpp"
#include "net/socket/peer_socket.hpp"

#include <any>
#include <functional>
#include <memory>
#include <string>

namespace gradsync::net {

class PeerLink : public Session {
 public:
  /// The handshake of the side that was connected to: `request` is that of an Upgrade. Of the side that connected:
  /// `host` is what it asked for, with its port. Both return why the link cannot be opened; empty: `run` follows.
  [[nodiscard]] virtual Task<std::string> accept(std::any request) = 0;
  [[nodiscard]] virtual Task<std::string> ask(std::string host) = 0;

  /// Until the link has ended and its socket is closed.
  [[nodiscard]] virtual Task<void> run() = 0;

  virtual void send(std::string text) = 0;
  virtual void joined() = 0;               ///< from now on it may stay
  virtual void close() = 0;                ///< the texts that wait are written first, within a second
  virtual void drop(std::string why) = 0;  ///< at once
};

struct LinkStart {
  LinkId id = 0;
  bool accepted = false;
  PeerSocket socket;  ///< connected
  std::function<void()> on_joined;
};

[[nodiscard]] std::shared_ptr<PeerLink> make_link(const LinkContextPtr& context, LinkStart start);

}  // namespace gradsync::net
