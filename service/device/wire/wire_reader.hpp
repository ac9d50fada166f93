#pragma once
// Reads the messages of one connection, each into the memory that was given for it. The frame of the next one is read
// early, so that the end of a connection is seen where nobody waits for anything; its bytes are not, until somebody
// asks for them.
//
// Thread: the wire's. Internal to device/wire.

#include "device/wire/wire_end.hpp"
#include "device/wire/wire_frame.hpp"

#include <cstddef>
#include <deque>
#include <span>
#include <string>

namespace gradsync::device {

class WireReader {
 public:
  explicit WireReader(WireEnd& end) : end_(end) {}

  void start();
  void receive(const WireMessage& message, std::span<std::byte> bytes);

 private:
  enum class Reading { Frame, Bytes, Nothing };  ///< Nothing: a frame is here, and nobody has asked for its message

  struct Incoming {
    WireMessage message;
    std::span<std::byte> bytes;
  };

  void read();
  void on_read(const boost::system::error_code& error, std::size_t bytes);
  void take_frame();
  void compare();
  void finish_message();
  [[nodiscard]] std::span<std::byte> target();
  [[nodiscard]] std::string where_it_was() const;

  WireEnd& end_;
  std::deque<Incoming> incoming_;
  Reading reading_ = Reading::Frame;
  std::size_t done_ = 0;  ///< bytes of the frame, or of the message
  FrameBytes frame_bytes_{};
  WireFrame frame_;
};

}  // namespace gradsync::device
