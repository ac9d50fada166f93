#pragma once
// What the files of this layer share: who calls, the way out for replies, limits.

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/fair_budget.hpp"
#include "engine/types.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace gradsync::rpc {

using ConnectionId = std::uint64_t;

/// The process at the other end.
struct Peer {
  bool local = false;  ///< unix socket: may attach
  bool privileged =
      false;  ///< may change things without a session (log level): same uid as the daemon, root, or the token
  std::uint32_t uid = 0;
  std::int64_t pid = 0;      ///< 0: another pid namespace
  bool reads_only = false;   ///< has the token for reading: sees the jobs of every uid, and changes nothing
  std::string address = {};  ///< of a peer over TCP
};

/// The way out for replies. Implemented by app over net.
class Outbox {
 public:
  virtual ~Outbox() = default;
  virtual void send(ConnectionId connection, std::string text) = 0;

  [[nodiscard]] virtual bool drained(ConnectionId connection) const = 0;  ///< nothing waits to be written
  /// So many bytes of events are kept until all is written that was sent: they count as unread, too.
  virtual void note_waiting(ConnectionId connection, std::size_t bytes) = 0;
  virtual void close(ConnectionId connection, std::string reason) = 0;
};

/// The values that change while the daemon runs. rpc has no clock of its own.
struct ServerMoment {
  TimePoint now{};
  double uptime_s = 0;
  bool draining = false;
};

/// The daemon's description of itself.
struct ServerIdentity {
  std::string version;
  std::string incarnation;  ///< 16 hex digits, new at every start
  std::string boot_id;
  std::int64_t pid = 0;
  std::function<ServerMoment()> moment;  ///< for status.get and the duration metric; empty: serving, at time 0
  std::uint32_t own_uid = 0;             ///< its own processes are not limited as those of another uid are
};

struct RpcLimits {
  std::size_t message_bytes = 1u << 20;
  std::size_t depth = 32;
  std::size_t batch_items = 64;
  std::size_t subscriptions = 16;  ///< per connection
  std::size_t event_queue = 256;   ///< per subscription
  std::size_t declare_pages = 256;
  engine::EngineLimits engine;  ///< the limits of the engine: told to clients, and `tensors` stops a declaration early
  engine::EngineDeadlines deadlines;  ///< the deadlines of the engine: told to clients
};

/// Set by `log.set_level`; returns the level before.
using SetLogLevel = std::function<Result<std::string>(const std::string& level)>;

struct DoctorAnswer;

/// Has the node examined for a caller; the reply comes later, on the io thread.
using ExamineNode = std::function<void(const Holder& caller, engine::Reply<DoctorAnswer> reply)>;

struct DumpAnswer;

/// Has the flight recorders dumped of jobs with this name, or of all; the reply comes when they are written.
using DumpJobs = std::function<void(const std::optional<std::string>& job, engine::Reply<DumpAnswer> reply)>;

/// Answer of `POST /rpc`: a body and status 200, or 204 when nothing is to be said, or that of the error of a single
/// call.
struct PostReply {
  int status = 200;
  std::string body;
  bool complete = false;
  std::function<void()> on_complete;  ///< where somebody waits for it
};

/// A POST that is carried out in turns. The dispatcher must outlive it.
class PostCall {
 public:
  virtual ~PostCall() = default;
  /// One turn; true: all is called. `reply` is complete then, or will be, and this has to live until it is.
  [[nodiscard]] virtual bool go_on() = 0;

  PostReply reply;
};

}  // namespace gradsync::rpc
