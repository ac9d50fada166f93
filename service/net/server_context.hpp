#pragma once
// The state that the coroutines of one server share. Thread: io only. Internal to net.

#include "net/http/tokens.hpp"
#include "net/limits/connection_pools.hpp"
#include "net/limits/fair_share.hpp"
#include "net/limits/held_bytes.hpp"
#include "net/limits/limited_log.hpp"
#include "net/limits/process_turns.hpp"
#include "net/metrics.hpp"
#include "net/socket/asio_types.hpp"
#include "net/socket/closer.hpp"
#include "net/types.hpp"

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

namespace gradsync::net {

/// One live connection, whatever it speaks. Both calls may come at any time; the connection's coroutine then ends.
class Session {
 public:
  virtual ~Session() = default;
  virtual void go_away() = 0;  ///< ends politely: after the answer being written, with a close frame
  virtual void abort() = 0;    ///< closes the socket

  /// May be closed to make room for another one.
  [[nodiscard]] virtual bool expendable() const { return true; }
};

/// The writing side of a WebSocket.
class WebSocketPort {
 public:
  virtual ~WebSocketPort() = default;
  virtual void send(std::string text) = 0;
  [[nodiscard]] virtual bool drained() const = 0;
  virtual void note_waiting(std::size_t bytes) = 0;  ///< bytes that the handler keeps for it
  virtual void close(std::string_view reason) = 0;
  virtual void drop_unread_answers(const HeldBytes::Excess& excess) = 0;   ///< ends it, because it does not read
  virtual void drop_partial_message(const HeldBytes::Excess& excess) = 0;  ///< closes it: too much is half sent
};

class ProcessWatch;
struct LinkContext;

/// The listener that a connection came through. It decides which requests are allowed.
enum class Entrance {
  Unix,    ///< everything
  Fd,      ///< descriptors for tokens
  Health,  ///< GET of pages, jobs shown with a token only
  Tcp,     ///< a token first, then WebSocket, POST and pages
  Peer,    ///< the token of other daemons first, then a link and nothing else
};

struct ServerContext {
  asio::io_context& io;
  ServerOptions options;
  MessageHandler& messages;
  PageHandler& pages;
  FdHandler& fds;
  NetMetrics& metrics;
  std::shared_ptr<LinkContext> peers;  ///< links to other daemons; none: there is no listener for them
  Tokens tokens;                       ///< those that peers over TCP have
  std::uint32_t own_uid = 0;
  ConnectionId last_id = 0;
  std::unordered_map<ConnectionId, std::shared_ptr<Session>> sessions;
  std::unordered_map<ConnectionId, std::shared_ptr<WebSocketPort>> websockets;
  std::unordered_map<ConnectionId, std::shared_ptr<ProcessWatch>> watches;
  HeldBytes half_sent;
  HeldBytes unread_answers;
  FairShare fair_share;
  std::shared_ptr<ProcessTurns> turns;
  ConnectionPools pools;
  std::shared_ptr<LimitedLog> log;
  bool closing_all = false;
  Timer force_close;  ///< set by close_all: connections still open then are aborted
  std::shared_ptr<Closer> closer;

  void remove_session(ConnectionId id) {
    sessions.erase(id);
    pools.remove(id);
    metrics.connections.Set(static_cast<double>(sessions.size()));
    if (closing_all && sessions.empty()) {
      force_close.cancel();
    }
  }
};

using ContextPtr = std::shared_ptr<ServerContext>;

/// A connection as accepted: owns the descriptor of the socket and that of the peer's process.
struct Incoming {
  ConnectionId id = 0;
  Entrance entrance = Entrance::Unix;
  UniqueFd socket;
  int family = 0;
  PeerIdentity peer;
  std::string address;             ///< of a peer by TCP
  UniqueFd process;                ///< pidfd
  std::shared_ptr<Closer> closer;  ///< none where no descriptor can come
};

/// A session and its coroutine, which keeps it alive.
struct Serving {
  std::shared_ptr<Session> session;
  Task<void> task;
};

}  // namespace gradsync::net
