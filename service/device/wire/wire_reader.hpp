#pragma once
// Reads the messages of one connection, each into the memory that was given for it. The frame of the next one is read
// early, so that the end of a connection is seen where nobody waits for anything; its bytes are not, until somebody
// asks for them. It answers the other end's question whether it is there.
//
// Thread: the wire's. Internal to device/wire.

#include "device/wire/wire_end.hpp"
#include "device/wire/wire_frame.hpp"
#include "device/wire/wire_watch.hpp"
#include "device/wire/wire_writer.hpp"

#include <cstddef>
#include <deque>
#include <span>
#include <string>

namespace gradsync::device {

class WireReader {
 public:
  WireReader(WireEnd& end, WireWriter& writer) : end_(end), writer_(writer) {}

  void start();
  void receive(const WireMessage& message, std::span<std::byte> bytes);

  [[nodiscard]] WireLook look() const { return {!incoming_.empty(), reading_ == Reading::Nothing, end_.received}; }

  /// What is waited for, for messages of faults.
  [[nodiscard]] std::string where_it_was() const;

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

  WireEnd& end_;
  WireWriter& writer_;
  std::deque<Incoming> incoming_;
  Reading reading_ = Reading::Frame;
  std::size_t done_ = 0;  ///< bytes of the frame, or of the message
  FrameBytes frame_bytes_{};
  WireFrame frame_;
};

}  // namespace gradsync::device
