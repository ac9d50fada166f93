#include "device/wire/wire_writer.hpp"

#include <boost/asio/buffer.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace gradsync::device {

void WireWriter::send(const WireMessage& message, std::span<const std::byte> bytes) { put({message, bytes}); }

void WireWriter::say(WireSignal signal) {
  if (outgoing_.empty()) {
    put({{}, {}, signal});
  }
}

void WireWriter::put(const Outgoing& outgoing) {
  if (end_.stopped) {
    return;
  }
  outgoing_.push_back(outgoing);
  if (outgoing_.size() == 1) {
    begin_message();
  }
}

void WireWriter::begin_message() {
  const Outgoing& front = outgoing_.front();
  frame_bytes_ = front.signal ? write_signal(*front.signal) : write_frame(frame_of(front.message, front.bytes.size()));
  done_ = 0;
  write();
}

void WireWriter::write() {
  const std::span<const std::byte> bytes = outgoing_.front().bytes.subspan(std::max(done_, kFrameBytes) - kFrameBytes);
  const std::span<const std::byte> frame = std::span(frame_bytes_).subspan(std::min(done_, kFrameBytes));
  const std::array<boost::asio::const_buffer, 2> rest{
      boost::asio::buffer(frame.data(), frame.size()),
      boost::asio::buffer(bytes.data(), std::min(bytes.size(), WireEnd::kMostAtOnce))};
  end_.socket.async_write_some(rest, [this](const boost::system::error_code& error, std::size_t written) {
    on_written(error, written);
  });
}

void WireWriter::on_written(const boost::system::error_code& error, std::size_t bytes) {
  end_.counts.sent.fetch_add(bytes, std::memory_order_relaxed);
  if (end_.stopped) {
    return;
  }
  const Outgoing front = outgoing_.front();
  if (error) {
    const std::string words = front.signal ? "a sign of life" : words_of(frame_of(front.message, front.bytes.size()));
    end_.fail(fmt::format("{}, while {} was sent", end_.ended_by(error), words));
    return;
  }
  done_ += bytes;
  if (done_ < kFrameBytes + front.bytes.size()) {
    write();
    return;
  }
  outgoing_.pop_front();
  if (!front.signal) {
    end_.outcome.add({front.message, false});
  }
  if (!outgoing_.empty()) {
    begin_message();
  }
}

}  // namespace gradsync::device
