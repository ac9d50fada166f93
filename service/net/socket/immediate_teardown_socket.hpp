#pragma once
// A socket below Beast that ends a connection at once. Beast's own teardown waits until the peer closes, and holds back
// the end of the connection as long. Here the end is known at once; the session then reads off what the peer still
// sends, so that it sees the close frame and no reset.
//
// Thread: io only. Internal to net.

#include "net/socket/peer_socket.hpp"

#include <boost/asio/append.hpp>
#include <boost/asio/post.hpp>

#include <utility>

namespace gradsync::net {

/// `Base`: a PeerSocket, or a socket on top of one.
template <typename Base>
class ImmediateTeardown : public Base {
 public:
  template <typename... Arguments>
  explicit ImmediateTeardown(PeerSocket&& socket, Arguments&... arguments) : Base(std::move(socket), arguments...) {}

  template <typename Handler>
  void tear_down(Handler&& handler) {
    boost::system::error_code ignored;
    this->shutdown(Socket::shutdown_send, ignored);
    asio::post(this->get_executor(), asio::append(std::forward<Handler>(handler), boost::system::error_code{}));
  }
};

}  // namespace gradsync::net
