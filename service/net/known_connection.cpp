#include "net/known_connection.hpp"

#include "net/process_watch.hpp"

#include <utility>

namespace gradsync::net {

KnownConnection::KnownConnection(
    ContextPtr context, ConnectionId id, const PeerIdentity& peer, UniqueFd process, std::shared_ptr<WebSocketPort> port
)
    : context_(std::move(context)), id_(id) {
  context_->websockets.emplace(id_, std::move(port));
  context_->messages.on_open(id_, peer);
  ProcessWatch::start(context_, id_, std::move(process));
}

KnownConnection::~KnownConnection() {
  context_->websockets.erase(id_);
  if (context_->io.stopped()) {  // the coroutine is destroyed with the io context, and the handler may be gone
    return;
  }
  const bool watch_on = context_->messages.on_close(id_);
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
