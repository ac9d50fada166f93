#pragma once
// What stands before the bytes of each message on a connection between two nodes: 40 bytes, little-endian.
//
//    0 "GSD1"          4 payload: 0 a partial sum, 1 a result    5 zeros
//    8 u64 attempt    16 u32 bucket    20 u32 number
//   24 u64 bytes      32 zeros
//
// Between messages an end may ask whether the other one is there, or say that it is: such a frame has 2 or 3 in place
// of the payload, and zeros behind it.
//
// Both ends count alike (plan/transfer/node_transfer.hpp), so a frame says nothing that its receiver does not know: it
// is there to be compared. Pure functions of bytes that a stranger may have sent.

#include "device/wire/wire.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>

namespace gradsync::device {

inline constexpr std::size_t kFrameBytes = 40;

using FrameBytes = std::array<std::byte, kFrameBytes>;

/// The name of a message and its size.
struct WireFrame {
  plan::Payload payload = plan::Payload::Partial;
  Tag tag = 0;
  std::uint32_t bucket = 0;
  std::uint32_t number = 0;
  std::uint64_t bytes = 0;
  friend bool operator==(const WireFrame&, const WireFrame&) = default;
};

/// What an end says between messages.
enum class WireSignal : std::uint8_t { AreYouThere = 2, Here = 3 };

[[nodiscard]] WireFrame frame_of(const WireMessage& message, std::uint64_t bytes);

[[nodiscard]] FrameBytes write_frame(const WireFrame& frame);

[[nodiscard]] FrameBytes write_signal(WireSignal signal);

/// What `write_frame` or `write_signal` has written, or what is wrong with the bytes.
[[nodiscard]] std::variant<WireFrame, WireSignal, std::string> read_frame(const FrameBytes& bytes);

/// "result 3 of bucket 2 of attempt 7 (4096 bytes)"
[[nodiscard]] std::string words_of(const WireFrame& frame);

}  // namespace gradsync::device
