#pragma once
// Text in, text out: the JSON-RPC side of every connection. Knows JSON and the engine's structs, knows no socket.
//
// Thread: io only; no call of the Outbox may call back into the dispatcher. Every request gets exactly one reply (a
// notification none), in the order in which replies become ready. Events are pushed to a connection only while nothing
// else waits to be written there; each subscription keeps at most `event_queue` of them and drops the oldest, counting
// the dropped.

#include "engine/engine.hpp"
#include "rpc/types.hpp"

#include <memory>
#include <string_view>

namespace gradsync::rpc {

struct RpcMetrics;

class Dispatcher {
 public:
  Dispatcher(
      engine::Engine& engine,
      Outbox& outbox,
      ServerIdentity identity,
      RpcLimits limits,
      SetLogLevel set_log_level,
      ExamineNode examine_node,
      DumpJobs dump_jobs,
      RpcMetrics& metrics
  );
  ~Dispatcher();

  void on_open(ConnectionId connection, const Peer& peer);
  /// False: nothing of it could be handed to a method; it was answered with an error.
  bool on_text(ConnectionId connection, std::string_view text);
  /// The rest of a batch waits for a later turn: `go_on` has to be called before the next text.
  [[nodiscard]] bool has_more(ConnectionId connection) const;
  void go_on(ConnectionId connection);
  void on_drained(ConnectionId connection);
  [[nodiscard]] bool initialized(ConnectionId connection) const;  ///< `session.initialize` was answered
  bool on_close(ConnectionId connection);  ///< the engine hears `connection_lost`; true: `on_process_exit` is wanted
  void on_process_exit(ConnectionId connection);  ///< the peer process is gone; may come before or after on_close
  [[nodiscard]] PostReply on_post(const Peer& peer, std::string_view body);  ///< session-less methods only: never waits
  [[nodiscard]] std::unique_ptr<PostCall> begin_post(const Peer& peer, std::string_view body);  ///< the same, in turns

  void on_event(const engine::Event& event);

 private:
  struct State;
  class Posted;
  std::unique_ptr<State> state_;
};

}  // namespace gradsync::rpc
