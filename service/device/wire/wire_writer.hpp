#pragma once
// Writes the messages of one connection, in the order in which they were given.
//
// Thread: the wire's. Internal to device/wire.

#include "device/wire/wire_end.hpp"
#include "device/wire/wire_frame.hpp"

#include <cstddef>
#include <deque>
#include <span>

namespace gradsync::device {

class WireWriter {
 public:
  explicit WireWriter(WireEnd& end) : end_(end) {}

  void send(const WireMessage& message, std::span<const std::byte> bytes);

 private:
  struct Outgoing {
    WireMessage message;
    std::span<const std::byte> bytes;
  };

  void begin_message();
  void write();
  void on_written(const boost::system::error_code& error, std::size_t bytes);

  WireEnd& end_;
  std::deque<Outgoing> outgoing_;  ///< the front is being written
  FrameBytes frame_bytes_{};       ///< of the front
  std::size_t done_ = 0;           ///< bytes of the front, its frame included
};

}  // namespace gradsync::device
