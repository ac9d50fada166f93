#pragma once
// A socket below Beast that ends a connection at once. Beast's own teardown waits until the peer closes, and holds back
// the end of the connection as long. Here the end is known at once; the session then reads off what the peer still
// sends, so that it sees the close frame and no reset.
//
// Thread: io only. Internal to net.

#include "net/socket/paced_socket.hpp"

#include <utility>

namespace gradsync::net {

class ImmediateTeardownSocket : public PacedSocket {
 public:
  using PacedSocket::PacedSocket;

  template <typename Handler>
  void tear_down(Handler&& handler) {
    boost::system::error_code ignored;
    shutdown(Socket::shutdown_send, ignored);
    asio::post(get_executor(), asio::append(std::forward<Handler>(handler), boost::system::error_code{}));
  }
};

}  // namespace gradsync::net
