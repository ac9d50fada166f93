#pragma once
// Writes the messages of one connection, in the order in which they were given, and signals between them.
//
// Thread: the wire's. Internal to device/wire.

#include "device/wire/wire_end.hpp"
#include "device/wire/wire_frame.hpp"

#include <cstddef>
#include <deque>
#include <optional>
#include <span>

namespace gradsync::device {

class WireWriter {
 public:
  explicit WireWriter(WireEnd& end) : end_(end) {}

  void send(const WireMessage& message, std::span<const std::byte> bytes);

  /// Unless something is on its way already, which says as much.
  void say(WireSignal signal);

 private:
  struct Outgoing {
    WireMessage message;
    std::span<const std::byte> bytes;
    std::optional<WireSignal> signal = std::nullopt;  ///< instead of a message
  };

  void put(const Outgoing& outgoing);
  void begin_message();
  void write();
  void on_written(const boost::system::error_code& error, std::size_t bytes);

  WireEnd& end_;
  std::deque<Outgoing> outgoing_;  ///< the front is being written
  FrameBytes frame_bytes_{};       ///< of the front
  std::size_t done_ = 0;           ///< bytes of the front, its frame included
};

}  // namespace gradsync::device
