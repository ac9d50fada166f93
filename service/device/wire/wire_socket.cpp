#include "device/wire/wire_socket.hpp"

#include "device/device_error.hpp"

#include <boost/asio/ip/tcp.hpp>
#include <fmt/format.h>

#include <sys/socket.h>
#include <system_error>

#include <cerrno>
#include <cstring>
#include <netinet/in.h>
#include <netinet/tcp.h>

namespace gradsync::device {

namespace {

constexpr int kKeepIdleS = 4;  ///< with the two below: dead after ten seconds
constexpr int kKeepIntervalS = 2;
constexpr int kKeepProbes = 3;

[[noreturn]] void refuse_socket(const std::string& what, const std::string& why) {
  throw DeviceError(fmt::format("{} cannot be used: {}", what, why));
}

int socket_option(int socket, int option, const std::string& what) {
  int value = 0;
  socklen_t size = sizeof value;
  if (::getsockopt(socket, SOL_SOCKET, option, &value, &size) != 0) {
    refuse_socket(what, std::generic_category().message(errno));
  }
  return value;
}

void set_option(int socket, int level, int option, int value) {
  ::setsockopt(socket, level, option, &value, sizeof value);
}

/// TCP_USER_TIMEOUT would end a connection whose other end lives and does not read, because a rank there is slow: the
/// kernel counts the time of a closed window, too. Keepalive does not, and the end that waits for bytes has it.
/// The sizes of buffers are left to the kernel, which adapts them.
void set_tcp(int socket) {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, 0);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, kKeepIdleS);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, kKeepIntervalS);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, kKeepProbes);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
}

/// Empty where it is no address of the internet.
std::string address_text(const WireSocket::endpoint_type& end) {
  boost::asio::ip::tcp::endpoint place;
  if (end.protocol().family() != AF_INET && end.protocol().family() != AF_INET6) {
    return {};
  }
  place.resize(end.size());
  std::memcpy(place.data(), end.data(), end.size());
  const boost::asio::ip::address& host = place.address();
  const std::string text = host.is_v6() ? fmt::format("[{}]", host.to_string()) : host.to_string();
  return fmt::format("{}:{}", text, place.port());
}

}  // namespace

WireSocket take_socket(boost::asio::io_context& io, UniqueFd fd, const std::string& what) {
  if (socket_option(fd.get(), SO_TYPE, what) != SOCK_STREAM) {
    refuse_socket(what, "it is no stream socket");
  }
  sockaddr_storage other{};
  socklen_t size = sizeof other;
  if (::getpeername(fd.get(), reinterpret_cast<sockaddr*>(&other), &size) != 0) {
    refuse_socket(what, std::generic_category().message(errno));
  }
  const int protocol = socket_option(fd.get(), SO_PROTOCOL, what);
  if (protocol == IPPROTO_TCP) {
    set_tcp(fd.get());
  }
  WireSocket socket{io.get_executor()};
  boost::system::error_code error;
  socket.assign({socket_option(fd.get(), SO_DOMAIN, what), protocol}, fd.get(), error);
  if (error) {
    refuse_socket(what, error.message());
  }
  static_cast<void>(fd.release());
  return socket;
}

std::string addresses_of(const WireSocket& socket) {
  boost::system::error_code error;
  const std::string here = address_text(socket.local_endpoint(error));
  const std::string there = error ? std::string() : address_text(socket.remote_endpoint(error));
  return error || here.empty() || there.empty() ? std::string() : fmt::format(" ({} to {})", here, there);
}

}  // namespace gradsync::device
