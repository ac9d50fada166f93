#pragma once
// Sockets, HTTP and WebSocket: text in, text out. Beast and Asio stay in .cpp files.
//
// Thread: io only. One coroutine reads each connection and never is cancelled in the middle of a frame; writes go
// through one bounded queue per connection. Messages go to the interfaces of types.hpp, which app implements.

#include "net/types.hpp"

#include <memory>
#include <optional>
#include <string>

namespace boost::asio {
class io_context;
}

namespace gradsync::net {

struct NetMetrics;
class PeerLinks;

/// The handlers and links must outlive the server, and the io context must not run on after it is destroyed.
class Server {
 public:
  Server(
      boost::asio::io_context& io,
      ServerOptions options,
      MessageHandler& messages,
      PageHandler& pages,
      FdHandler& fds,
      NetMetrics& metrics,
      PeerLinks* links = nullptr  ///< takes the links of other daemons; none: `peer_address` has to be empty
  );
  ~Server();

  /// Binds everything. A stale socket file is replaced, a live daemon's is not. A taken health port is a warning,
  /// a health address that cannot be used an error. nullopt: it serves.
  [[nodiscard]] std::optional<StartFailure> start();
  [[nodiscard]] std::string health_endpoint() const;  ///< "127.0.0.1:9477" as bound, or ""
  [[nodiscard]] std::string tcp_endpoint() const;
  [[nodiscard]] std::string peer_endpoint() const;

  void send(ConnectionId connection, std::string text);
  [[nodiscard]] bool drained(ConnectionId connection) const;  ///< nothing waits to be written; false when closed
  /// So many bytes are kept for the connection until it has read what was sent: they count as unread, too.
  void note_waiting(ConnectionId connection, std::size_t bytes);
  void close(ConnectionId connection, std::string reason);  ///< queued texts are written first

  void stop_accepting();  ///< closes all listeners but health and removes their files
  void close_all();       ///< closes every connection (politely, for a second at most) and the health listener

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace gradsync::net
