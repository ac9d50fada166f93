#include "net/socket/handler_registration.hpp"

#include "net/socket/process_watch.hpp"

#include <utility>

namespace gradsync::net {

HandlerRegistration::HandlerRegistration(
    ContextPtr context, ConnectionId id, const PeerIdentity& peer, UniqueFd process, std::shared_ptr<WebSocketPort> port
)
    : context_(std::move(context)), id_(id), peer_(peer) {
  context_->websockets.emplace(id_, std::move(port));
  context_->messages.on_open(id_, peer);
  ProcessWatch::start(context_, id_, std::move(process));
}

/// Charges the process of the peer for the work that ends with the connection, so that it cannot be had for free by
/// opening a new one.
bool HandlerRegistration::tell_close() {
  const IoWatch::Turn turn{context_->metrics.io_watch, "a closed connection"};
  const bool watch_on = context_->messages.on_close(id_);
  context_->fair_share.charge(peer_, id_, FairShare::Worth::Refused, turn.computed(), std::chrono::steady_clock::now());
  return watch_on;
}

HandlerRegistration::~HandlerRegistration() {
  context_->websockets.erase(id_);
  if (context_->io.stopped()) {  // the coroutine is destroyed with the io context, and the handler may be gone
    return;
  }
  const bool watch_on = tell_close();
  const auto watch = context_->watches.find(id_);
  if (watch == context_->watches.end()) {
    return;
  }
  if (watch_on) {
    watch->second->on_connection_closed(context_->options.watch_after_close);
  } else {
    watch->second->stop();
    context_->watches.erase(watch);
  }
}

}  // namespace gradsync::net
