#pragma once
// What the files of this layer share: who is at the other end, the interfaces that app implements, options.

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/unique_fd.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gradsync::net {

using ConnectionId = std::uint64_t;

/// What a bearer token allows.
enum class TokenRole : std::uint8_t {
  None,      ///< there is none, or a wrong one
  Reader,    ///< to see the jobs of every uid, and to change nothing
  Operator,  ///< what root may do without a session
};

struct PeerIdentity {
  bool local = false;  ///< came over the unix socket: uid, gid, pid are the kernel's word (SO_PEERCRED)
  std::uint32_t uid = 0;
  std::uint32_t gid = 0;
  std::int64_t pid = 0;
  TokenRole token = TokenRole::None;  ///< of a peer over TCP
  std::string address = {};           ///< of a peer over TCP, numeric
};

/// WebSocket messages and POST /rpc bodies.
class MessageHandler {
 public:
  virtual ~MessageHandler() = default;
  virtual void on_open(ConnectionId connection, const PeerIdentity& peer) = 0;
  /// False where the text is not a request that can be carried out. A process that sends many of those is read later
  /// (net/limits/fair_share.hpp).
  [[nodiscard]] virtual bool on_text(ConnectionId connection, std::string_view text) = 0;

  /// The text was a batch, and its rest waits for a later turn of the thread: `go_on` is called before the next text.
  [[nodiscard]] virtual bool has_more(ConnectionId /*connection*/) const { return false; }

  virtual void go_on(ConnectionId /*connection*/) {}

  /// Asked once, `initialize_timeout` after the connection opened.
  [[nodiscard]] virtual bool initialized(ConnectionId connection) = 0;
  virtual void on_drained(ConnectionId connection) = 0;  ///< the write queue became empty
  /// After this the id is used for `on_process_exit` at most, and that only if this returns true.
  [[nodiscard]] virtual bool on_close(ConnectionId connection) = 0;
  /// The peer process ended (pidfd).
  virtual void on_process_exit(ConnectionId connection) = 0;

  struct PostReply {
    int status = 200;
    std::string body;
    std::function<PostReply()> go_on = {};  ///< the reply is not complete: to be called in a later turn, for another
    /// The reply is made elsewhere: to be called once with what takes it, on this thread.
    std::function<void(std::function<void(PostReply)>)> later = {};
  };

  [[nodiscard]] virtual PostReply on_post(const PeerIdentity& peer, std::string_view body) = 0;
};

struct HttpReply {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::string content_policy = {};  ///< Content-Security-Policy of a page with scripts; empty: it has none
};

/// A GET of a page.
struct PageRequest {
  std::string_view path;
  std::string_view query;   ///< without the question mark
  std::string_view accept;  ///< the header, or empty
  /// The daemon's uid or root over the unix socket, or a token: pages with jobs may show those of every uid.
  bool trusted = false;
};

/// Who may have a page over TCP. Over the unix socket everybody may have each.
enum class PageAccess : std::uint8_t {
  Shell,   ///< the same for every daemon, like a style sheet: whoever reaches a port
  Daemon,  ///< of the daemon and not of a job, like probes: whoever reaches the health port, else with a token
  Jobs,    ///< with a token; at the health port also without, and then it shows no jobs
};

/// GET pages of the health listener (and of the unix socket).
class PageHandler {
 public:
  virtual ~PageHandler() = default;
  /// The rule of a page; for what is no page, `Jobs`. A browser cannot send a token before it has a page that asks for
  /// one.
  [[nodiscard]] virtual PageAccess access(const PageRequest& request) const = 0;
  /// nullopt: 404.
  [[nodiscard]] virtual std::optional<HttpReply> on_get(const PageRequest& request) = 0;
};

/// The fd socket: token in, descriptor out; or token and descriptor in.
class FdHandler {
 public:
  virtual ~FdHandler() = default;

  struct TakenFd {
    UniqueFd fd;  ///< none where the token stands for one that is given
    std::uint64_t size_bytes = 0;
  };

  /// Whether a descriptor has to come along with the token: nothing else has one received.
  [[nodiscard]] virtual bool takes_descriptor(const std::string& token, const PeerIdentity& peer) = 0;
  /// `given`: the memfd that came along with the token, or none.
  [[nodiscard]] virtual Result<TakenFd> on_fd_request(
      const std::string& token, const PeerIdentity& peer, UniqueFd given
  ) = 0;
  /// The error object of the protocol as one line of JSON: `{"error": {…}}`. JSON is not known here.
  [[nodiscard]] virtual std::string error_line(const Error& error) = 0;
};

struct ServerOptions {
  std::string socket_path;  ///< …/gradsync.sock; the fd socket lies beside it as …/gradsync.fd.sock
  unsigned socket_mode = 0660;
  std::vector<std::uint32_t> allowed_uids;  ///< besides the daemon's own and root; empty: all that the mode admits
  bool allow_any_uid = true;
  std::string health_address = "127.0.0.1:9477";  ///< empty: none; port 0: any
  std::string tcp_address;                        ///< empty: none. RPC over TCP, read methods only
  std::string tcp_token_file;                     ///< empty: nobody may change anything over TCP
  std::string tcp_read_token_file;                ///< empty: nobody may only read over TCP
  std::string peer_address;     ///< empty: none. Links of other daemons; a port that is missing is kPeerPort
  std::string peer_token_file;  ///< what they have to know
  std::size_t message_bytes = 1u << 20;
  std::size_t connections = 2048;
  std::size_t partial_bytes = 256u << 20;    ///< the limit for unfinished messages of all connections together
  std::size_t unread_bytes = 128u << 20;     ///< the limit for unread answers of all connections together
  std::size_t write_queue_bytes = 8u << 20;  ///< a reader slower than this is disconnected
  Milliseconds handshake_timeout{10'000};    ///< also for an fd request, and for a request on a kept connection
  /// Without a sign of life for this long a WebSocket is closed; a ping goes out at half of it. Long, because a trainer
  /// that compiles may hold its interpreter lock for minutes; a local peer's real sign of life is its process.
  Milliseconds idle_timeout{3'600'000};
  /// From the first to the last byte of a message. Long for the same reason; what began holds memory until it ends.
  Milliseconds message_timeout{300'000};
  /// A local WebSocket that the handler does not call initialized by then is closed.
  Milliseconds initialize_timeout{30'000};
  /// False: descriptors are kept away as on a kernel before 6.16. For tests.
  bool kernel_refuses_descriptors = true;
  Milliseconds watch_after_close{2'000};  ///< how long the end of a process is still told after its connection closed
};

/// Why the server did not start, for the operator and for the exit code.
struct StartFailure {
  enum class Kind {
    InUse,          ///< another daemon answers there: try again later or elsewhere
    Configuration,  ///< the configuration names something that cannot be used
    System,         ///< the system refused
  };
  Kind kind = Kind::System;
  std::string message;
  std::string hint;
};

}  // namespace gradsync::net
