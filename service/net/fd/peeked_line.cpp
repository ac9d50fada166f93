#include "net/fd/peeked_line.hpp"

#include "net/fd/token_line.hpp"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace gradsync::net {

namespace {

/// The next look begins at this byte; each look goes on where the one before it ended.
bool look_from(int socket, int byte) { return ::setsockopt(socket, SOL_SOCKET, SO_PEEK_OFF, &byte, sizeof byte) == 0; }

}  // namespace

PeekedLine::PeekedLine(int socket) : socket_(socket) { static_cast<void>(look_from(socket, 0)); }

bool PeekedLine::read_on() {
  char chunk[kTokenLineBytes + 1];
  iovec data{chunk, sizeof chunk};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  const ssize_t bytes = ::recvmsg(socket_, &message, MSG_PEEK | MSG_DONTWAIT);
  if (bytes < 0) {
    return errno == EAGAIN || errno == EINTR;
  }
  if ((message.msg_flags & MSG_CTRUNC) != 0 && first_descriptor_at_ < 0) {
    first_descriptor_at_ = static_cast<int>(text_.size());
  }
  text_.append(chunk, static_cast<std::size_t>(bytes));
  return bytes > 0;
}

UniqueFd PeekedLine::duplicate_descriptor() {
  char chunk[kTokenLineBytes + 1];
  iovec data{chunk, sizeof chunk};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = CMSG_LEN(sizeof(int));  // room for one
  UniqueFd found;
  if (carries_descriptor() && look_from(socket_, first_descriptor_at_) &&
      ::recvmsg(socket_, &message, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC) > 0) {
    const cmsghdr* header = CMSG_FIRSTHDR(&message);
    if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
        header->cmsg_len >= CMSG_LEN(sizeof(int))) {
      int value = -1;
      std::memcpy(&value, CMSG_DATA(header), sizeof value);
      found.reset(value);
    }
  }
  return found;
}

}  // namespace gradsync::net
