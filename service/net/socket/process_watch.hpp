#pragma once
// Waits for the end of a peer's process by its pidfd, and tells once. It outlives the connection by the time in which a
// living trainer may come back: one that closes its socket and then dies is a lost rank at once. After that time the
// rank is lost anyway, and the descriptor is let go.
//
// Thread: io only. Internal to net.

#include "net/server_context.hpp"

namespace gradsync::net {

class ProcessWatch : public std::enable_shared_from_this<ProcessWatch> {
 public:
  /// Starts a watch that is kept in `context->watches` until it fired, was stopped or ran out.
  static void start(const ContextPtr& context, ConnectionId id, UniqueFd process);

  ProcessWatch(const ContextPtr& context, ConnectionId id, UniqueFd process);
  void on_connection_closed(Milliseconds still);
  void stop();

 private:
  void finish(bool exited);

  std::weak_ptr<ServerContext> context_;
  ConnectionId id_;
  Descriptor process_;
  Timer afterwards_;
  bool done_ = false;
};

}  // namespace gradsync::net
