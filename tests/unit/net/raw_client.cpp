#include "unit/net/raw_client.hpp"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <algorithm>
#include <arpa/inet.h>
#include <cctype>
#include <cstring>
#include <netinet/in.h>
#include <stdexcept>

namespace gradsync::net {

namespace {

constexpr int kDeadlineSeconds = 60;

UniqueFd connected(const sockaddr* address, socklen_t size) {
  UniqueFd fd{::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  const timeval deadline{kDeadlineSeconds, 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &deadline, sizeof deadline);
  ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &deadline, sizeof deadline);
  if (::connect(fd.get(), address, size) != 0) {
    throw std::runtime_error(std::string("connect: ") + std::strerror(errno));  // NOLINT(concurrency-mt-unsafe)
  }
  return fd;
}

/// A call with a deadline is interrupted also where the process is stopped and goes on, without any handler.
template <typename Call>
ssize_t uninterrupted(const Call& call) {
  ssize_t result = call();
  while (result < 0 && errno == EINTR) {
    result = call();
  }
  return result;
}

}  // namespace

int Frame::close_code() const {
  return payload.size() < 2 ? 1005
                            : static_cast<unsigned char>(payload[0]) * 256 + static_cast<unsigned char>(payload[1]);
}

RawClient::RawClient(UniqueFd fd) : fd_(std::move(fd)) {}

RawClient RawClient::unix_socket(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  return RawClient{connected(reinterpret_cast<const sockaddr*>(&address), sizeof address)};
}

RawClient RawClient::tcp(const std::string& endpoint) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  const std::size_t colon = endpoint.rfind(':');
  ::inet_pton(AF_INET, endpoint.substr(0, colon).c_str(), &address.sin_addr);
  address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(endpoint.substr(colon + 1))));
  return RawClient{connected(reinterpret_cast<const sockaddr*>(&address), sizeof address)};
}

void RawClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = uninterrupted([&] { return ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL); });
    if (sent < 0) {
      return;
    }
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
}

bool RawClient::read_more() {
  char chunk[65536];
  const ssize_t got = uninterrupted([&] { return ::recv(fd_.get(), chunk, sizeof chunk, 0); });
  if (got <= 0) {
    return false;
  }
  buffer_.append(chunk, static_cast<std::size_t>(got));
  return true;
}

std::string RawClient::read_line() {
  while (buffer_.find('\n') == std::string::npos) {
    if (!read_more()) {
      break;
    }
  }
  const std::size_t end = buffer_.find('\n');
  std::string line = buffer_.substr(0, end);
  buffer_.erase(0, end == std::string::npos ? end : end + 1);
  return line;
}

bool RawClient::at_end() {
  char byte = 0;
  const ssize_t got = buffer_.empty() ? uninterrupted([&] { return ::recv(fd_.get(), &byte, 1, 0); }) : 1;
  return got == 0 || (got < 0 && errno == ECONNRESET);
}

void RawClient::shut_down_sending() { ::shutdown(fd_.get(), SHUT_WR); }

HttpAnswer RawClient::request(
    std::string_view verb, std::string_view target, std::string_view headers, std::string_view body
) {
  std::string text =
      std::string(verb) + " " + std::string(target) + " HTTP/1.1\r\nHost: localhost\r\n" + std::string(headers);
  if (!body.empty()) {
    text += "Content-Length: " + std::to_string(body.size()) + "\r\n";
  }
  send(text + "\r\n");
  send(body);
  return read_answer(verb != "HEAD");
}

HttpAnswer RawClient::read_answer(bool has_body) {
  HttpAnswer answer;
  std::size_t end = std::string::npos;
  while ((end = buffer_.find("\r\n\r\n")) == std::string::npos) {
    if (!read_more()) {
      return answer;
    }
  }
  const std::string head = buffer_.substr(0, end + 2);
  buffer_.erase(0, end + 4);
  answer.status = std::stoi(head.substr(9, 3));
  for (std::size_t at = head.find("\r\n") + 2; at < head.size();) {
    const std::size_t line_end = head.find("\r\n", at);
    const std::size_t colon = head.find(':', at);
    std::string name = head.substr(at, colon - at);
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) {
      return static_cast<char>(std::tolower(c));
    });
    answer.headers[name] = head.substr(colon + 2, line_end - colon - 2);
    at = line_end + 2;
  }
  const auto length = answer.headers.find("content-length");
  const std::size_t wanted = has_body && length != answer.headers.end() ? std::stoul(length->second) : 0;
  while (buffer_.size() < wanted) {
    if (!read_more()) {
      break;
    }
  }
  answer.body = buffer_.substr(0, wanted);
  buffer_.erase(0, wanted);
  return answer;
}

HttpAnswer RawClient::upgrade(std::string_view protocols, std::string_view target, std::string_view headers) {
  std::string lines =
      "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
      "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n" +
      std::string(headers);
  if (!protocols.empty()) {
    lines += "Sec-WebSocket-Protocol: " + std::string(protocols) + "\r\n";
  }
  return request("GET", target, lines);
}

void RawClient::send_frame(int opcode, std::string_view payload, bool fin, bool masked, int reserved) {
  std::string frame;
  frame += static_cast<char>((fin ? 0x80 : 0) | reserved << 4 | opcode);
  const int mask_bit = masked ? 0x80 : 0;
  if (payload.size() < 126) {
    frame += static_cast<char>(mask_bit | static_cast<int>(payload.size()));
  } else if (payload.size() < 65536) {
    frame += static_cast<char>(mask_bit | 126);
    frame += static_cast<char>(payload.size() >> 8);
    frame += static_cast<char>(payload.size() & 0xff);
  } else {
    frame += static_cast<char>(mask_bit | 127);
    for (int shift = 56; shift >= 0; shift -= 8) {
      frame += static_cast<char>(payload.size() >> shift & 0xff);
    }
  }
  if (masked) {
    frame += std::string(4, '\0');  // a mask of zeros leaves the payload readable
  }
  frame += payload;
  send(frame);
}

Frame RawClient::read_frame() {
  const auto need = [this](std::size_t bytes) {
    while (buffer_.size() < bytes) {
      if (!read_more()) {
        return false;
      }
    }
    return true;
  };
  const auto byte = [this](std::size_t at) {
    return static_cast<std::size_t>(static_cast<unsigned char>(buffer_[at]));
  };
  Frame ended;
  ended.opcode = -1;
  if (!need(2)) {
    return ended;
  }
  Frame frame;
  frame.fin = (byte(0) & 0x80) != 0;
  frame.opcode = static_cast<int>(byte(0) & 0x0f);
  std::size_t size = byte(1) & 0x7f;
  std::size_t header = 2;
  const std::size_t extended = size == 126 ? 2 : size == 127 ? 8 : 0;
  if (extended > 0) {
    if (!need(2 + extended)) {
      return ended;
    }
    size = 0;
    for (std::size_t i = 0; i < extended; ++i) {
      size = size << 8 | byte(2 + i);
    }
    header += extended;
  }
  if (!need(header + size)) {
    return ended;
  }
  frame.payload = buffer_.substr(header, size);
  buffer_.erase(0, header + size);
  return frame;
}

}  // namespace gradsync::net
