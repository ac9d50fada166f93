#pragma once
// What an experiment and its worker processes say to each other: a name and fields, one datagram each. Also the host
// clock that both read (CLOCK_MONOTONIC is one clock for all processes of a machine).

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <time.h>
#include <vector>

namespace gradsync::experiments {

inline double now_us() {
  timespec time{};
  (void)clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
}

/// A point in time that waits end at.
class Deadline {
 public:
  explicit Deadline(double seconds) : at_us_(now_us() + seconds * 1e6) {}

  [[nodiscard]] bool passed() const { return now_us() >= at_us_; }

  /// For poll(): rounded up, never negative.
  [[nodiscard]] int left_ms() const {
    const double left = (at_us_ - now_us()) * 1e-3;
    return left <= 0 ? 0 : static_cast<int>(left) + 1;
  }

 private:
  double at_us_;
};

class Message {
 public:
  Message() = default;

  explicit Message(std::string name) : name_(std::move(name)) {}

  Message& set(const std::string& key, std::string_view value);
  Message& set(const std::string& key, double value);
  Message& set(const std::string& key, std::int64_t value);
  Message& set(const std::string& key, const std::vector<double>& values);

  Message& set(const std::string& key, int value) { return set(key, static_cast<std::int64_t>(value)); }

  Message& set(const std::string& key, std::size_t value) { return set(key, static_cast<std::int64_t>(value)); }

  Message& set(const std::string& key, bool value) { return set(key, static_cast<std::int64_t>(value)); }

  Message& set(const std::string& key, const char* value) { return set(key, std::string_view(value)); }

  [[nodiscard]] const std::string& name() const { return name_; }

  [[nodiscard]] bool has(const std::string& key) const { return fields_.contains(key); }

  /// Each throws and names the field when it is missing or no number.
  [[nodiscard]] const std::string& text(const std::string& key) const;
  [[nodiscard]] std::int64_t integer(const std::string& key) const;
  [[nodiscard]] double number(const std::string& key) const;
  [[nodiscard]] std::vector<double> numbers(const std::string& key) const;

  [[nodiscard]] std::size_t size(const std::string& key) const { return static_cast<std::size_t>(integer(key)); }

  [[nodiscard]] bool flag(const std::string& key) const { return integer(key) != 0; }

  [[nodiscard]] std::string encoded() const;
  static Message decoded(std::string_view text);

 private:
  std::string name_;
  std::map<std::string, std::string> fields_;
};

/// Both ends of a socket pair that keeps the borders of messages.
struct SocketPair {
  int ours;
  int theirs;
};

SocketPair socket_pair();

/// False at the deadline; throws when the other end is gone.
bool receive(int socket, Message* message, const Deadline& deadline);
void send(int socket, const Message& message);

std::string hex(const void* bytes, std::size_t count);
void unhex(std::string_view text, void* bytes, std::size_t count);

}  // namespace gradsync::experiments
