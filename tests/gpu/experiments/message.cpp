#include "gpu/experiments/message.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <stdexcept>

namespace gradsync::experiments {
namespace {

// A message is one datagram; the longest carry a few thousand times.
constexpr std::size_t kLargestMessage = 1 << 18;

std::runtime_error system_error(const std::string& what) {
  return std::runtime_error(what + ": " + std::strerror(errno));
}

std::string number_text(double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text), value);
  return {text, end.ptr};
}

}  // namespace

Message& Message::set(const std::string& key, std::string_view value) {
  std::string text(value);
  for (char& letter : text) {
    letter = letter == '\n' ? ' ' : letter;
  }
  fields_[key] = text;
  return *this;
}

Message& Message::set(const std::string& key, double value) { return set(key, std::string_view(number_text(value))); }

Message& Message::set(const std::string& key, std::int64_t value) {
  return set(key, std::string_view(std::to_string(value)));
}

Message& Message::set(const std::string& key, const std::vector<double>& values) {
  std::string text;
  for (const double value : values) {
    text.append(text.empty() ? "" : " ").append(number_text(value));
  }
  return set(key, std::string_view(text));
}

const std::string& Message::text(const std::string& key) const {
  const auto found = fields_.find(key);
  if (found == fields_.end()) {
    throw std::runtime_error("message '" + name_ + "' has no field '" + key + "'");
  }
  return found->second;
}

std::int64_t Message::integer(const std::string& key) const {
  const std::string& value = text(key);
  std::int64_t result = 0;
  if (std::from_chars(value.data(), value.data() + value.size(), result).ptr != value.data() + value.size()) {
    throw std::runtime_error("field '" + key + "' of '" + name_ + "' is no integer: " + value);
  }
  return result;
}

double Message::number(const std::string& key) const {
  const std::string& value = text(key);
  double result = 0;
  if (std::from_chars(value.data(), value.data() + value.size(), result).ptr != value.data() + value.size()) {
    throw std::runtime_error("field '" + key + "' of '" + name_ + "' is no number: " + value);
  }
  return result;
}

std::vector<double> Message::numbers(const std::string& key) const {
  const std::string& value = text(key);
  std::vector<double> result;
  const char* at = value.data();
  const char* end = at + value.size();
  while (at < end) {
    double one = 0;
    const auto read = std::from_chars(at, end, one);
    if (read.ec != std::errc()) {
      throw std::runtime_error("field '" + key + "' of '" + name_ + "' is no list of numbers");
    }
    result.push_back(one);
    at = read.ptr + 1;
  }
  return result;
}

std::string Message::encoded() const {
  std::string text = name_;
  for (const auto& [key, value] : fields_) {
    text.append(1, '\n').append(key).append(1, '=').append(value);
  }
  return text;
}

Message Message::decoded(std::string_view text) {
  const auto line = [&text] {
    const auto end = std::min(text.find('\n'), text.size());
    const std::string_view first = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    return first;
  };
  Message message{std::string(line())};
  while (!text.empty()) {
    const std::string_view field = line();
    const auto equals = std::min(field.find('='), field.size());
    message.fields_[std::string(field.substr(0, equals))] = field.substr(std::min(equals + 1, field.size()));
  }
  return message;
}

SocketPair socket_pair() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    throw system_error("socketpair");
  }
  const int bytes = kLargestMessage * 2;
  for (const int end : ends) {
    // What the system grants is enough for all but the longest list of times; a message that does not fit is an error.
    (void)setsockopt(end, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
  }
  return {ends[0], ends[1]};
}

bool receive(int socket, Message* message, const Deadline& deadline) {
  while (true) {
    pollfd entry{socket, POLLIN, 0};
    const int ready = poll(&entry, 1, deadline.left_ms());
    if (ready == 0) {
      return false;
    }
    if (ready < 0 && errno != EINTR) {
      throw system_error("poll");
    }
    if (ready > 0) {
      break;
    }
  }
  // Not cleared for each message: latencies are measured through here.
  static thread_local std::vector<char> bytes(kLargestMessage);
  const ssize_t count = recv(socket, bytes.data(), bytes.size(), 0);
  if (count <= 0) {
    throw std::runtime_error("the other process ended");
  }
  *message = Message::decoded({bytes.data(), static_cast<std::size_t>(count)});
  return true;
}

void send(int socket, const Message& message) {
  const std::string bytes = message.encoded();
  if (::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(bytes.size())) {
    throw system_error("send of '" + message.name() + "' with " + std::to_string(bytes.size()) + " bytes");
  }
}

std::string hex(const void* bytes, std::size_t count) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < count; ++i) {
    const unsigned byte = static_cast<const unsigned char*>(bytes)[i];
    text += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return text;
}

void unhex(std::string_view text, void* bytes, std::size_t count) {
  if (text.size() != count * 2) {
    throw std::runtime_error("expected " + std::to_string(count) + " bytes in hex, got " + std::string(text));
  }
  for (std::size_t i = 0; i < count; ++i) {
    unsigned byte = 0;
    (void)std::from_chars(text.data() + 2 * i, text.data() + 2 * i + 2, byte, 16);
    static_cast<unsigned char*>(bytes)[i] = static_cast<unsigned char>(byte);
  }
}

}  // namespace gradsync::experiments
