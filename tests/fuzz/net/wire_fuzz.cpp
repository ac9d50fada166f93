// What comes over a connection between nodes: each 40 bytes as a frame, and all of it through a socket into a wire. The
// input is a script of the bytes that another node sends; the first of each command, modulo 5, says what:
//   0                 the message that is expected next
//   1 COUNT           the same without its last bytes, COUNT of them
//   2 PLACE VALUE     its frame alone, with one byte changed
//   3 COUNT BYTES     these bytes
//   4 WHICH           a signal: a question, or the answer where WHICH is odd
// A walk over the bytes says which messages arrive, and whether the wire ends with a fault. What else is in memory that
// was given to the wire must be as it was.

#include "device/wire/wire_frame.hpp"
#include "fuzz/fuzz.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <span>
#include <vector>

namespace {

using namespace gradsync;          // NOLINT(google-build-using-namespace): a main file
using namespace gradsync::device;  // NOLINT(google-build-using-namespace)

using Bytes = std::vector<std::byte>;

constexpr std::size_t kMessages = 24;
constexpr std::size_t kMostBytes = 64 << 10;  ///< fits into a socket that nobody reads
constexpr std::size_t kLongestWords = 300;
constexpr std::byte kUntouched{0xab};

WireMessage message(std::size_t number) {
  return {1, plan::Payload::Partial, 7, 2, static_cast<std::uint32_t>(number)};
}

/// None for each seventh.
std::size_t size_of(std::size_t number) { return number % 7 * 30; }

FrameBytes frame_of_message(std::size_t number) { return write_frame(frame_of(message(number), size_of(number))); }

/// The input as it is read.
class Script {
 public:
  explicit Script(std::span<const std::uint8_t> rest) : rest_(rest) {}

  [[nodiscard]] bool empty() const { return rest_.empty(); }

  std::uint8_t next() {
    const std::uint8_t byte = rest_.empty() ? 0 : rest_.front();
    rest_ = rest_.subspan(std::min<std::size_t>(1, rest_.size()));
    return byte;
  }

  std::span<const std::uint8_t> next(std::size_t count) {
    const auto bytes = rest_.first(std::min(count, rest_.size()));
    rest_ = rest_.subspan(bytes.size());
    return bytes;
  }

 private:
  std::span<const std::uint8_t> rest_;
};

void append(Bytes& stream, std::span<const std::byte> bytes) {
  stream.insert(stream.end(), bytes.begin(), bytes.end());
}

Bytes stream_of(Script script) {
  Bytes stream;
  for (std::size_t number = 0; !script.empty() && stream.size() < kMostBytes;) {
    FrameBytes frame = frame_of_message(number % kMessages);
    const std::uint8_t command = script.next() % 5;
    if (command == 0 || command == 1) {
      Bytes whole(frame.begin(), frame.end());
      whole.resize(frame.size() + size_of(number % kMessages), static_cast<std::byte>(number));
      whole.resize(whole.size() - std::min<std::size_t>(whole.size(), command == 0 ? 0 : script.next()));
      append(stream, whole);
      ++number;
    } else if (command == 2) {
      frame[script.next() % kFrameBytes] = static_cast<std::byte>(script.next());
      append(stream, frame);
    } else if (command == 4) {
      append(stream, write_signal(script.next() % 2 == 0 ? WireSignal::AreYouThere : WireSignal::Here));
    } else {
      append(stream, std::as_bytes(script.next(script.next())));
    }
  }
  return stream;
}

void check_frames(std::span<const std::byte> stream) {
  for (; stream.size() >= kFrameBytes; stream = stream.subspan(kFrameBytes)) {
    FrameBytes bytes{};
    std::copy_n(stream.begin(), kFrameBytes, bytes.begin());
    const auto read = read_frame(bytes);
    if (const auto* frame = std::get_if<WireFrame>(&read)) {
      REQUIRE(write_frame(*frame) == bytes);
      REQUIRE(words_of(*frame).size() <= kLongestWords);
    } else if (const auto* signal = std::get_if<WireSignal>(&read)) {
      REQUIRE(write_signal(*signal) == bytes);
    } else {
      const std::string& problem = std::get<std::string>(read);
      REQUIRE(!problem.empty() && problem.size() <= kLongestWords);
      REQUIRE(std::all_of(problem.begin(), problem.end(), [](char byte) { return byte >= 0x20 && byte < 0x7f; }));
    }
  }
}

struct Expected {
  std::vector<Bytes> messages;  ///< that arrive
  std::size_t begun = 0;        ///< bytes that come of the one behind them
  bool fault = true;            ///< false: the wire waits for somebody to ask for the next message
};

/// They may stand between any two messages.
std::span<const std::byte> behind_signals(std::span<const std::byte> stream) {
  for (; stream.size() >= kFrameBytes; stream = stream.subspan(kFrameBytes)) {
    FrameBytes next{};
    std::copy_n(stream.begin(), kFrameBytes, next.begin());
    if (next != write_signal(WireSignal::AreYouThere) && next != write_signal(WireSignal::Here)) {
      break;
    }
  }
  return stream;
}

Expected walk(std::span<const std::byte> stream) {
  Expected expected;
  for (std::size_t number = 0; number < kMessages; ++number) {
    stream = behind_signals(stream);
    const FrameBytes frame = frame_of_message(number);
    if (stream.size() < kFrameBytes || !std::equal(frame.begin(), frame.end(), stream.begin())) {
      return expected;
    }
    stream = stream.subspan(kFrameBytes);
    const auto bytes = stream.first(std::min(size_of(number), stream.size()));
    if (bytes.size() < size_of(number)) {
      expected.begun = bytes.size();
      return expected;
    }
    expected.messages.emplace_back(bytes.begin(), bytes.end());
    stream = stream.subspan(bytes.size());
  }
  stream = behind_signals(stream);
  if (stream.size() >= kFrameBytes) {
    FrameBytes next{};
    std::copy_n(stream.begin(), kFrameBytes, next.begin());
    const auto read = read_frame(next);
    const auto* frame = std::get_if<WireFrame>(&read);
    expected.fault = frame == nullptr || frame->payload != plan::Payload::Partial;
  }
  return expected;
}

/// A wire, and its owner.
class Receiver {
 public:
  explicit Receiver(NodeConnection connection) {
    std::vector<NodeConnection> connections;
    connections.push_back(std::move(connection));
    wire_ = make_socket_wire(std::move(connections), [this] { wake(); });
    for (std::size_t number = 0; number < kMessages; ++number) {
      memory_.emplace_back(size_of(number), kUntouched);
      wire_->receive(message(number), memory_.back());
    }
  }

  ~Receiver() { wire_.reset(); }

  Receiver(const Receiver&) = delete;
  Receiver& operator=(const Receiver&) = delete;

  void check(const Expected& expected) {
    std::vector<WireDone> done;
    while (expected.fault ? !wire_->fault().has_value() : done.size() < expected.messages.size()) {
      wait();
      wire_->take_done(done);
    }
    wire_->take_done(done);
    REQUIRE(wire_->fault().has_value() == expected.fault);
    REQUIRE(done.size() == expected.messages.size());
    wire_.reset();
    for (std::size_t number = 0; number < kMessages; ++number) {
      if (number < done.size()) {
        REQUIRE(done[number].received && done[number].message == message(number));
        REQUIRE(memory_[number] == expected.messages[number]);
      } else {
        const std::size_t begun = number == done.size() ? expected.begun : 0;
        const auto rest = std::span(memory_[number]).subspan(begun);
        REQUIRE(std::all_of(rest.begin(), rest.end(), [](std::byte byte) { return byte == kUntouched; }));
      }
    }
  }

 private:
  void wake() {
    const std::lock_guard lock(mutex_);
    woken_ = true;
    condition_.notify_one();
  }

  void wait() {
    std::unique_lock lock(mutex_);
    REQUIRE(condition_.wait_for(lock, std::chrono::seconds(10), [this] { return woken_; }));
    woken_ = false;
  }

  std::mutex mutex_;
  std::condition_variable condition_;
  bool woken_ = false;
  std::vector<Bytes> memory_;
  std::unique_ptr<Wire> wire_;
};

std::pair<UniqueFd, UniqueFd> sockets() {
  int fds[2] = {-1, -1};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Bytes stream = stream_of(Script({data, size}));
  check_frames(stream);
  auto [partials, other_partials] = sockets();
  const auto results = sockets();
  Receiver receiver({1, std::move(partials), UniqueFd(::dup(results.first.get()))});
  for (std::size_t sent = 0; sent < stream.size();) {
    const ssize_t count = ::send(other_partials.get(), stream.data() + sent, stream.size() - sent, MSG_NOSIGNAL);
    REQUIRE(count > 0);
    sent += static_cast<std::size_t>(count);
  }
  REQUIRE(::shutdown(other_partials.get(), SHUT_WR) == 0);  // answers still have a place to go to
  receiver.check(walk(stream));
  return 0;
}
