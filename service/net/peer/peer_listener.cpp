#include "net/peer/peer_listener.hpp"

#include "net/peer/link_context.hpp"
#include "net/peer/peer_link.hpp"

#include <spdlog/spdlog.h>

#include <memory>
#include <utility>

namespace gradsync::net {

namespace {

/// The session of the same id is this link from now on.
std::shared_ptr<PeerLink> take_over(const ContextPtr& context, ConnectionId connection, PeerSocket&& socket) {
  LinkStart start{
      ++context->peers->last_id, true, std::move(socket), [context, connection] { context->pools.remove(connection); }};
  std::shared_ptr<PeerLink> link = make_link(context->peers, std::move(start));
  context->sessions[connection] = link;
  return link;
}

/// Operations that an exception left pending end with the socket.
struct AbortLinkAtEnd {
  PeerLink& link;

  ~AbortLinkAtEnd() { link.abort(); }
};

}  // namespace

Task<void> serve_peer_link(ContextPtr context, Upgrade upgrade) {
  const ConnectionId connection = upgrade.id;
  const std::shared_ptr<PeerLink> link = take_over(context, connection, std::move(upgrade.socket));
  const AbortLinkAtEnd abort_at_end{*link};
  const std::string why = co_await link->accept(std::move(upgrade.request));
  if (!why.empty()) {
    spdlog::debug("a link was not opened connection={}: {}", connection, why);
    co_return;
  }
  co_await link->run();
}

}  // namespace gradsync::net
