#include "device/wire/wire_frame.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>

namespace gradsync::device {

namespace {

static_assert(std::endian::native == std::endian::little, "the numbers of a frame are little-endian");

constexpr std::string_view kMagic = "GSD1";
constexpr std::size_t kPayloadAt = 4;
constexpr std::size_t kTagAt = 8;
constexpr std::size_t kBucketAt = 16;
constexpr std::size_t kNumberAt = 20;
constexpr std::size_t kBytesAt = 24;

template <typename Number>
void put(FrameBytes& bytes, std::size_t at, Number number) {
  std::memcpy(bytes.data() + at, &number, sizeof number);
}

template <typename Number>
Number number_at(const FrameBytes& bytes, std::size_t at) {
  Number number{};
  std::memcpy(&number, bytes.data() + at, sizeof number);
  return number;
}

FrameBytes frame_that_says(std::uint8_t what) {
  FrameBytes bytes{};
  std::memcpy(bytes.data(), kMagic.data(), kMagic.size());
  put(bytes, kPayloadAt, what);
  return bytes;
}

/// As text where it is one, because strangers often speak HTTP or the like; else in hexadecimal digits.
std::string first_bytes(const FrameBytes& bytes) {
  std::string text;
  std::string digits;
  bool readable = true;
  for (std::size_t i = 0; i < kMagic.size(); ++i) {
    const auto byte = std::to_integer<unsigned char>(bytes[i]);
    readable = readable && byte >= 0x20 && byte < 0x7f;
    text += static_cast<char>(byte);
    digits += fmt::format("{}{:02x}", i == 0 ? "" : " ", byte);
  }
  return readable ? fmt::format("\"{}\"", text) : digits;
}

}  // namespace

WireFrame frame_of(const WireMessage& message, std::uint64_t bytes) {
  return {message.payload, message.tag, message.bucket, message.number, bytes};
}

FrameBytes write_frame(const WireFrame& frame) {
  FrameBytes bytes = frame_that_says(static_cast<std::uint8_t>(frame.payload));
  put(bytes, kTagAt, frame.tag);
  put(bytes, kBucketAt, frame.bucket);
  put(bytes, kNumberAt, frame.number);
  put(bytes, kBytesAt, frame.bytes);
  return bytes;
}

FrameBytes write_signal(WireSignal signal) { return frame_that_says(static_cast<std::uint8_t>(signal)); }

std::variant<WireFrame, WireSignal, std::string> read_frame(const FrameBytes& bytes) {
  if (std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) {
    return fmt::format(
        "{} came where a message begins with \"{}\": what sends there is no daemon of this release",
        first_bytes(bytes),
        kMagic
    );
  }
  const auto payload = number_at<std::uint8_t>(bytes, kPayloadAt);
  const auto signal = static_cast<WireSignal>(payload);
  if (signal == WireSignal::AreYouThere || signal == WireSignal::Here) {
    if (bytes != write_signal(signal)) {
      return fmt::format("a sign of life ({}) came with bytes that are not zero where it has none", payload);
    }
    return signal;
  }
  if (payload > static_cast<std::uint8_t>(plan::Payload::Result)) {
    return fmt::format(
        "a message says that its payload is {}, which is no partial sum (0), no result (1) and no sign of life (2, 3)",
        payload
    );
  }
  WireFrame frame;
  frame.payload = static_cast<plan::Payload>(payload);
  frame.tag = number_at<Tag>(bytes, kTagAt);
  frame.bucket = number_at<std::uint32_t>(bytes, kBucketAt);
  frame.number = number_at<std::uint32_t>(bytes, kNumberAt);
  frame.bytes = number_at<std::uint64_t>(bytes, kBytesAt);
  if (bytes != write_frame(frame)) {
    return fmt::format("{} came with bytes that are not zero where a frame has none", words_of(frame));
  }
  return frame;
}

std::string words_of(const WireFrame& frame) {
  return fmt::format(
      "{} {} of bucket {} of attempt {} ({} bytes)",
      frame.payload == plan::Payload::Partial ? "partial sum" : "result",
      frame.number,
      frame.bucket,
      frame.tag,
      frame.bytes
  );
}

}  // namespace gradsync::device
