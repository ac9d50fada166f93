#include "unit/net/peer/listening_stub.hpp"

#include <fmt/format.h>

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <arpa/inet.h>
#include <array>
#include <netinet/in.h>
#include <stdexcept>

namespace gradsync::net {

namespace {

constexpr int kLookAgainMs = 5;

/// False: the connection ended.
bool forward(int from, int to) {
  std::array<char, 65536> bytes;
  const ssize_t got = ::recv(from, bytes.data(), bytes.size(), 0);
  if (got < 0) {
    return errno == EAGAIN || errno == EINTR;
  }
  for (ssize_t sent = 0; sent < got;) {
    const ssize_t more = ::send(to, bytes.data() + sent, static_cast<std::size_t>(got - sent), MSG_NOSIGNAL);
    if (more < 0) {
      return false;
    }
    sent += more;
  }
  return got > 0;
}

}  // namespace

ListeningStub::ListeningStub() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  const int on = 1;
  ::setsockopt(fd_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (::bind(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(fd_.get(), SOMAXCONN) != 0 ||
      ::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw std::runtime_error("cannot listen on 127.0.0.1");
  }
  port_ = ntohs(address.sin_port);
  endpoint_ = fmt::format("127.0.0.1:{}", port_);
}

RawClient ListeningStub::accept() const {
  const timeval deadline{60, 0};
  ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &deadline, sizeof deadline);
  UniqueFd accepted{::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC)};
  if (!accepted.valid()) {
    throw std::runtime_error("nobody connected");
  }
  ::setsockopt(accepted.get(), SOL_SOCKET, SO_RCVTIMEO, &deadline, sizeof deadline);
  return RawClient{std::move(accepted)};
}

FreezingProxy::FreezingProxy(const std::string& target) : thread_([this, target] { run(target); }) {}

FreezingProxy::~FreezingProxy() {
  stopping_ = true;
  const RawClient wakes = RawClient::tcp(endpoint());  // where nobody has connected yet
  thread_.join();
}

void FreezingProxy::run(const std::string& target) {
  const RawClient client = listening_.accept();
  if (stopping_) {
    return;
  }
  const RawClient server = RawClient::tcp(target);
  while (!stopping_) {
    std::array<pollfd, 2> ready{
        pollfd{client.fd(), static_cast<short>(to_target_ ? POLLIN : 0), 0},
        pollfd{server.fd(), static_cast<short>(from_target_ ? POLLIN : 0), 0}};
    ::poll(ready.data(), ready.size(), kLookAgainMs);
    const bool to = to_target_ && ready[0].revents != 0;
    const bool from = from_target_ && ready[1].revents != 0;
    if ((to && !forward(client.fd(), server.fd())) || (from && !forward(server.fd(), client.fd()))) {
      return;  // both connections end
    }
  }
}

}  // namespace gradsync::net
