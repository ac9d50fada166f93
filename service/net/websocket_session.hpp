#pragma once
// One WebSocket from the accepted upgrade to its close: text messages in, a bounded queue of texts out. Internal to
// net.

#include "net/server_context.hpp"

#include <boost/beast/http/message.hpp>
#include <boost/beast/http/string_body.hpp>

namespace gradsync::net {

using Request = boost::beast::http::request<boost::beast::http::string_body>;

/// What the HTTP side hands over with an upgrade.
struct Upgrade {
  ConnectionId id = 0;
  Socket socket;
  Request request;
  PeerIdentity peer;
  UniqueFd process;
};

/// Replaces the session of the same id. The subprotocol has been checked.
[[nodiscard]] Task<void> serve_websocket(ContextPtr context, Upgrade upgrade);

}  // namespace gradsync::net
