#include "net/peer/peer_connector.hpp"

#include "net/peer/peer_link.hpp"

#include <utility>

namespace gradsync::net {

void PeerConnector::abort() {
  if (link_) {
    link_->abort();
  }
}

void PeerConnector::tell_end(std::string why) { context()->end(id(), std::move(why)); }

Task<std::string> PeerConnector::serve(PeerSocket socket, std::string host) {
  LinkStart start{id(), false, std::move(socket), nullptr};
  link_ = make_link(context(), std::move(start));
  std::string why = co_await link_->ask(std::move(host));
  if (stopped() || !why.empty()) {
    link_->abort();
    link_.reset();
    co_return why;
  }
  through();
  co_await link_->run();
  co_return why;
}

}  // namespace gradsync::net
