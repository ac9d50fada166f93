#include "net/socket/peer_socket.hpp"

#include <sys/socket.h>

#include <cerrno>

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83  // newer than the headers of Debian 12
#endif

namespace gradsync::net {

bool refuse_descriptors(int listening_socket) {
  const int off = 0;
  return ::setsockopt(listening_socket, SOL_SOCKET, SO_PASSRIGHTS, &off, sizeof off) == 0;
}

std::optional<std::size_t> read_without_descriptors(
    int socket, asio::mutable_buffer target, boost::system::error_code& error
) {
  iovec data{target.data(), target.size()};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  ssize_t bytes = ::recvmsg(socket, &message, MSG_PEEK | MSG_DONTWAIT);
  if (bytes > 0 && (message.msg_flags & MSG_CTRUNC) != 0) {
    error = kSentDescriptors;
    return std::nullopt;
  }
  if (bytes > 0) {  // no more than was looked at: descriptors may come at any time
    bytes = ::recv(socket, target.data(), static_cast<std::size_t>(bytes), MSG_DONTWAIT);
  }
  if (bytes > 0) {
    return static_cast<std::size_t>(bytes);
  }
  if (bytes == 0) {
    error = asio::error::eof;
  } else if (errno != EAGAIN && errno != EINTR) {
    error.assign(errno, boost::system::system_category());
  }
  return std::nullopt;
}

void PeerSocket::take(UniqueFd fd, int family, std::uint32_t uid, std::shared_ptr<Closer> closer) {
  uid_ = uid;
  closer_ = std::move(closer);
  assign(asio::generic::stream_protocol(family, 0), fd.get());
  static_cast<void>(fd.release());  // the socket's now
}

void PeerSocket::end() {
  if (!is_open()) {
    return;
  }
  boost::system::error_code error;
  if (closer_) {
    closer_->close(UniqueFd{release(error)}, uid_);
  } else {
    close(error);
  }
}

}  // namespace gradsync::net
