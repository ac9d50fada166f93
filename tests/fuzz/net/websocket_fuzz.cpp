// What comes in over the RPC socket, from the upgrade to the end of the connection, read by the real server (Beast
// included). The input is options and a script of commands for up to four connections at once, so that what they hold
// half-sent meets its limit:
//   options   1: the end of the peer is watched on after a connection   2: connections are closed, not half-closed
//   command   kind | connection << 4 | held << 6 | dribbled << 7, a byte of length, the payload
// Kinds 0 to 10 are frames of that opcode, 11 to 14 odd ones, 15 does what its length says. Held bytes go out with the
// next command's, dribbled ones one at a time. A command for a connection that is not there opens it: upgraded, except
// with bytes as they are (kind 13). A text of "B…", "T…" or "F…" makes the handler close, throw, or send much.
//
// What is handed up, answered and closed must be what the model says; then nothing is left of any of it.

#include "base/version.hpp"
#include "fuzz/net/sockets.hpp"
#include "fuzz/net/websocket_model.hpp"
#include "net/metrics.hpp"
#include "net/server.hpp"

#include <spdlog/spdlog.h>

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <vector>

namespace {

using namespace gradsync;  // NOLINT(google-build-using-namespace): a main file

constexpr std::size_t kMessageBytes = 512;
constexpr std::size_t kPartialBytes = 4 * kMessageBytes;  // of which one process, as this one, may hold half
constexpr std::size_t kQueueBytes = 64 * 1024;
constexpr std::size_t kInputBytes = 16 * 1024;  // that an input may make of itself
constexpr int kCommands = 24;
constexpr std::size_t kDribbled = 64;  // bytes
constexpr std::size_t kFloodText = 4096;
constexpr unsigned kTold = 1008;
constexpr unsigned kTryAgainLater = 1013;

constexpr std::string_view kUpgrade =
    "GET /rpc HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Protocol: gradsync.v1.jsonrpc\r\n\r\n";

class Handlers : public net::MessageHandler, public net::PageHandler, public net::FdHandler {
 public:
  net::Server* server = nullptr;
  bool watch_on = false;
  net::ConnectionId last_opened = 0;
  std::map<net::ConnectionId, std::vector<std::string>> texts;  ///< by connection, also after its end
  std::size_t open = 0;

  void on_open(net::ConnectionId connection, const net::PeerIdentity& peer) override {
    REQUIRE(peer.local && peer.uid == ::getuid() && peer.pid == ::getpid());
    REQUIRE(connection > last_opened || !texts.contains(connection));
    last_opened = connection;
    texts[connection];
    closed_.erase(connection);
    ++open;
  }

  bool on_text(net::ConnectionId connection, std::string_view text) override {
    REQUIRE(texts.contains(connection) && !closed_.contains(connection));
    REQUIRE(text.size() <= kMessageBytes && fuzz::is_utf8(text));
    texts[connection].emplace_back(text);
    if (text.starts_with('B')) {
      server->send(connection, "first");
      server->send(connection, "last");
      server->close(connection, std::string(text));
      server->send(connection, "never");
    } else if (text.starts_with('T')) {
      throw std::runtime_error("thrown by the handler");
    } else if (text.starts_with('F')) {
      for (std::size_t i = 0; i < text.size(); ++i) {
        server->send(connection, std::string(kFloodText, 'x'));
      }
    } else {
      server->send(connection, std::string(text));
    }
    return true;
  }

  bool initialized(net::ConnectionId) override { return true; }

  void on_drained(net::ConnectionId connection) override {
    REQUIRE(!closed_.contains(connection));
    REQUIRE(server->drained(connection));
  }

  bool on_close(net::ConnectionId connection) override {
    REQUIRE(texts.contains(connection) && closed_.emplace(connection, 0).second);
    --open;
    return watch_on;
  }

  void on_process_exit(net::ConnectionId) override { REQUIRE(false); }

  PostReply on_post(const net::PeerIdentity&, std::string_view body) override {
    REQUIRE(body.size() <= kMessageBytes);
    return {200, std::string(body)};
  }

  [[nodiscard]] net::PageAccess access(const net::PageRequest& request) const override {
    return request.path == "/shell" ? net::PageAccess::Shell : net::PageAccess::Jobs;
  }

  std::optional<net::HttpReply> on_get(const net::PageRequest& request) override {
    return request.path == "/page" ? std::optional<net::HttpReply>(net::HttpReply{200, "text/plain", "page"})
                                   : std::nullopt;
  }

  bool takes_descriptor(const std::string&, const net::PeerIdentity&) override { return false; }

  Result<TakenFd> on_fd_request(const std::string&, const net::PeerIdentity&, UniqueFd) override {
    return make_error(ErrorCode::BadToken, "no such token");
  }

  std::string error_line(const Error& error) override { return error.message; }

  void forget() {
    REQUIRE(open == 0);
    texts.clear();
    closed_.clear();
  }

 private:
  std::map<net::ConnectionId, int> closed_;
};

struct Connection {
  explicit Connection(const std::string& path) : socket(path) {}

  fuzz::ClientSocket socket;
  bool upgraded = false;  ///< by `kUpgrade`; what follows is checked by the model
  net::ConnectionId id = 0;
  std::string held;
  std::string sent;     ///< after the upgrade
  bool reads = true;    ///< until the end
  bool closed = false;  ///< in the middle of it all
};

class World {
 public:
  World() {
    handlers_.server = &server_;
    REQUIRE(!server_.start().has_value());
    fuzz::settle(io_);
  }

  void run(std::string_view input) {
    if (inputs_++ % 64 == 0) {
      serve_good_clients();
    }
    const std::size_t descriptors = fuzz::open_descriptors();
    made_ = 0;
    const std::uint8_t options = input.empty() ? 0 : static_cast<std::uint8_t>(input[0]);
    input.remove_prefix(input.empty() ? 0 : 1);
    handlers_.watch_on = (options & 1) != 0;
    for (int commands = 0; input.size() >= 2 && made_ < kInputBytes && commands < kCommands; ++commands) {
      const auto head = static_cast<std::uint8_t>(input[0]);
      const std::size_t length = std::min<std::size_t>(static_cast<std::uint8_t>(input[1]), input.size() - 2);
      const bool acts = (head & 15) == 15;
      command(head, static_cast<std::uint8_t>(input[1]), acts ? "" : input.substr(2, length));
      input.remove_prefix(acts ? 2 : 2 + length);
    }
    end((options & 2) != 0);
    fuzz::settle_until(io_, [&] { return metrics_.connections.Value() == 0; });
    for (std::optional<Connection>& connection : connections_) {
      if (connection && connection->upgraded) {
        check(*connection, (options & 2) != 0);
      }
      connection.reset();
    }
    // What a connection leaves behind may need another turn of the io context, but no clock.
    fuzz::settle_until(io_, [&] { return fuzz::open_descriptors() == descriptors; });
    handlers_.forget();
  }

 private:
  void command(std::uint8_t head, std::uint8_t length, std::string_view payload) {
    const unsigned kind = head & 15;
    std::optional<Connection>& slot = connections_[head >> 4 & 3];
    if (!slot) {
      slot.emplace(folder_ / "s.sock");
      if (kind != 13) {
        upgrade(*slot);
      }
    }
    if (slot->closed) {
      return;
    }
    if (kind == 15) {
      act(*slot, length);
    } else {
      slot->held += bytes_of(kind, length, payload);
    }
    if ((head & 64) == 0) {
      flush(*slot, (head & 128) != 0);
    }
  }

  static std::string bytes_of(unsigned kind, std::uint8_t length, std::string_view payload) {
    if (kind < 11) {
      return fuzz::client_frame(kind, true, payload);
    }
    if (kind == 11) {  // the first of several
      return fuzz::client_frame(1, false, payload);
    }
    if (kind == 12) {  // one between
      return fuzz::client_frame(0, false, payload);
    }
    if (kind == 13) {
      return std::string(payload);
    }
    // A large one: the payload again and again.
    std::string large;
    while (!payload.empty() && large.size() < 4u * length) {
      large += payload;
    }
    return fuzz::client_frame(1, true, large);
  }

  void act(Connection& connection, std::uint8_t what) {
    if (what % 4 == 0) {
      connection.socket.close();
      connection.closed = true;
    } else if (what % 4 == 1) {
      finish_sending(connection);
    } else {
      connection.reads = what % 4 == 3;
    }
  }

  /// The server does not write on to one that has stopped sending: what it has to say is read before.
  void finish_sending(Connection& connection) {
    std::size_t before = 0;
    do {
      before = connection.socket.received().size();
      connection.socket.read();
      fuzz::settle(io_);
      connection.socket.read();
    } while (connection.socket.received().size() > before);
    connection.socket.finish_sending();
  }

  void upgrade(Connection& connection) {
    connection.socket.send(kUpgrade);
    std::size_t end = std::string::npos;
    fuzz::settle_until(io_, [&] {  // after many at once, the next is accepted a little later
      connection.socket.read();
      return (end = connection.socket.received().find("\r\n\r\n")) != std::string::npos;
    });
    REQUIRE(connection.socket.received().starts_with("HTTP/1.1 101 "));
    connection.socket.received().erase(0, end + 4);
    connection.upgraded = true;
    connection.id = handlers_.last_opened;
  }

  void flush(Connection& connection, bool dribbled) {
    const std::string bytes = std::exchange(connection.held, {});
    made_ += bytes.size();
    for (std::size_t at = 0; at < bytes.size() && !connection.closed;) {
      const std::size_t size = dribbled && at < kDribbled ? 1 : bytes.size() - at;
      const std::size_t went = connection.socket.send(std::string_view(bytes).substr(at, size));
      if (went == 0) {
        break;
      }
      connection.sent.append(bytes, at, went);
      at += went;
      fuzz::settle(io_);
      if (connection.reads) {
        connection.socket.read();
      }
    }
  }

  void end(bool close) {
    for (std::optional<Connection>& connection : connections_) {
      if (!connection || connection->closed) {
        continue;
      }
      flush(*connection, false);
      if (close) {
        connection->socket.read();
        connection->socket.close();
        continue;
      }
      finish_sending(*connection);
      fuzz::settle_until(io_, [&] {
        connection->socket.read();
        return connection->socket.ended();
      });
    }
  }

  template <typename List>
  static bool is_prefix(const List& part, const List& whole) {
    return part.size() <= whole.size() && std::equal(part.begin(), part.end(), whole.begin());
  }

  void check(Connection& connection, bool closed) {
    fuzz::Heard heard = fuzz::heard_from_client(connection.sent, kMessageBytes);
    const auto acted = std::find_if(heard.texts.begin(), heard.texts.end(), [](const std::string& text) {
      return text.starts_with('B') || text.starts_with('T') || text.starts_with('F');
    });
    const char act = acted == heard.texts.end() ? ' ' : acted->front();
    const fuzz::Said said = fuzz::said_by_server(connection.socket.received());
    const std::vector<std::string>& handed_up = handlers_.texts[connection.id];
    REQUIRE(is_prefix(handed_up, heard.texts));
    REQUIRE(is_prefix(said.pongs, heard.pings));
    if (act == 'F') {
      return;
    }
    std::vector<std::string> replies = heard.texts;
    if (act != ' ') {
      heard.texts.resize(static_cast<std::size_t>(acted - heard.texts.begin()) + 1);
      replies.resize(heard.texts.size() - 1);
      REQUIRE(is_prefix(handed_up, heard.texts));
    }
    if (act == 'B') {
      replies.insert(replies.end(), {"first", "last"});
      heard.codes = {kTold};
    }
    REQUIRE(is_prefix(said.texts, replies));
    const bool dropped =
        said.closed && said.code == kTryAgainLater && said.reason.find("half sent") != std::string::npos;
    if (dropped || closed || connection.closed) {
      return;
    }
    REQUIRE(handed_up == heard.texts);
    REQUIRE(!said.closed || heard.codes.contains(said.code));
    REQUIRE(act != 'T' || !said.closed);
    // A frame that ends the connection overtakes the replies that are not written yet, and so does what is thrown.
    REQUIRE(!heard.alive || act == 'T' || said.texts == replies);
    REQUIRE(!heard.alive || act != ' ' || said.pongs == heard.pings);
    REQUIRE(said.closed || act == 'T' || (act != 'B' && !heard.ends));
  }

  /// Two messages that hold all that may be half-sent, and are then ended and answered: nothing is still counted.
  void serve_good_clients() {
    const std::string half(kMessageBytes, 'g');
    std::vector<Connection> clients;
    for (int i = 0; i < 2; ++i) {
      upgrade(clients.emplace_back(folder_ / "s.sock"));
      REQUIRE(clients.back().socket.send(fuzz::client_frame(1, false, half)) > 0);
      fuzz::settle(io_);
    }
    for (Connection& client : clients) {
      REQUIRE(client.socket.send(fuzz::client_frame(0, true, "")) > 0);
      fuzz::settle(io_);
      client.socket.read();
      const fuzz::Said said = fuzz::said_by_server(client.socket.received());
      REQUIRE(said.texts == std::vector{half} && !said.closed);
      client.socket.close();
    }
    fuzz::settle_until(io_, [&] { return metrics_.connections.Value() == 0; });
    handlers_.forget();
  }

  net::ServerOptions options() const {
    net::ServerOptions options;
    options.socket_path = folder_ / "s.sock";
    options.health_address = "";
    options.message_bytes = kMessageBytes;
    options.partial_bytes = kPartialBytes;
    options.write_queue_bytes = kQueueBytes;
    options.watch_after_close = Milliseconds{0};
    return options;
  }

  fuzz::Folder folder_;
  boost::asio::io_context io_{1};
  Handlers handlers_;
  prometheus::Registry registry_;
  net::NetMetrics metrics_{registry_};
  net::Server server_{io_, options(), handlers_, handlers_, handlers_, metrics_};
  std::array<std::optional<Connection>, 4> connections_;
  std::size_t made_ = 0;
  std::uint64_t inputs_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const bool kQuiet = (spdlog::set_level(spdlog::level::off), true);
  static_cast<void>(kQuiet);
  static World world;
  world.run(fuzz::text_of(data, size));
  return 0;
}
