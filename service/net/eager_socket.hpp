#pragma once
// A socket below Beast that ends a connection at once.
//
// Thread: io only. Internal to net.

#include "net/paced_socket.hpp"

#include <boost/beast/core/bind_handler.hpp>
#include <boost/beast/core/role.hpp>

namespace gradsync::net {

/// Beast's own teardown waits until the peer closes, and holds back the end of the connection as long. Here the end is
/// known at once; the session then reads off what the peer still sends, so that it sees the close frame and no reset.
class EagerSocket : public PacedSocket {
 public:
  using PacedSocket::PacedSocket;

  template <typename Handler>
  friend void async_teardown(boost::beast::role_type, EagerSocket& socket, Handler&& handler) {
    boost::system::error_code ignored;
    socket.shutdown(Socket::shutdown_send, ignored);
    asio::post(
        socket.get_executor(),
        boost::beast::bind_front_handler(std::forward<Handler>(handler), boost::system::error_code{})
    );
  }
};

}  // namespace gradsync::net
