#include "device/wire/wire_reader.hpp"

#include <boost/asio/buffer.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace gradsync::device {

void WireReader::start() { read(); }

void WireReader::receive(const WireMessage& message, std::span<std::byte> bytes) {
  if (end_.stopped) {
    return;
  }
  incoming_.push_back({message, bytes});
  end_.watch();
  if (reading_ == Reading::Nothing) {
    compare();
  }
}

std::span<std::byte> WireReader::target() {
  const std::span<std::byte> whole =
      reading_ == Reading::Frame ? std::span<std::byte>(frame_bytes_) : incoming_.front().bytes;
  return whole.subspan(done_);
}

void WireReader::read() {
  const std::span<std::byte> rest = target();
  end_.socket.async_read_some(
      boost::asio::buffer(rest.data(), std::min(rest.size(), WireEnd::kMostAtOnce)),
      [this](const boost::system::error_code& error, std::size_t bytes) { on_read(error, bytes); }
  );
}

void WireReader::on_read(const boost::system::error_code& error, std::size_t bytes) {
  end_.counts.received.fetch_add(bytes, std::memory_order_relaxed);
  end_.received += bytes;
  if (end_.stopped) {
    return;
  }
  if (error) {
    end_.fail(end_.ended_by(error) + where_it_was());
    return;
  }
  done_ += bytes;
  if (!target().empty()) {
    read();
  } else if (reading_ == Reading::Frame) {
    take_frame();
  } else {
    finish_message();
  }
}

void WireReader::take_frame() {
  auto came = read_frame(frame_bytes_);
  if (auto* problem = std::get_if<std::string>(&came)) {
    end_.fail(fmt::format("on {} {}", end_.words(), *problem));
    return;
  }
  done_ = 0;
  if (const auto* signal = std::get_if<WireSignal>(&came)) {
    if (*signal == WireSignal::AreYouThere) {
      writer_.say(WireSignal::Here);
    }
    read();
    return;
  }
  frame_ = std::get<WireFrame>(came);
  if (frame_.payload != end_.payload) {
    end_.fail(fmt::format("on {} came {}", end_.words(), words_of(frame_)));
  } else if (incoming_.empty()) {
    reading_ = Reading::Nothing;
    end_.watch();
  } else {
    compare();
  }
}

void WireReader::compare() {
  const Incoming& front = incoming_.front();
  const WireFrame expected = frame_of(front.message, front.bytes.size());
  if (frame_ != expected) {
    end_.fail(fmt::format("{} came where {} was expected", words_of(frame_), words_of(expected)));
    return;
  }
  reading_ = Reading::Bytes;
  if (front.bytes.empty()) {
    finish_message();
  } else {
    read();
  }
}

void WireReader::finish_message() {
  const WireMessage message = incoming_.front().message;
  incoming_.pop_front();
  reading_ = Reading::Frame;
  done_ = 0;
  end_.outcome.add({message, true});
  read();
}

std::string WireReader::where_it_was() const {
  if (reading_ == Reading::Bytes) {
    return fmt::format(", after {} bytes of {}", done_, words_of(frame_));
  }
  if (done_ > 0) {
    return fmt::format(", after {} of the {} bytes before a message", done_, kFrameBytes);
  }
  if (incoming_.empty()) {
    return ", where nothing was expected";
  }
  const Incoming& front = incoming_.front();
  return fmt::format(", where {} was expected", words_of(frame_of(front.message, front.bytes.size())));
}

}  // namespace gradsync::device
