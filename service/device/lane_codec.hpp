#pragma once
// Commands and reports of a lane as bytes, so that a lane can be another process. One value has one encoding. Pure: any
// thread. A message, little-endian:
//
//   "GSLN"          4 bytes
//   version         u16, kLaneCodecVersion
//   kind            u8, 0 command, 1 report
//   alternative     u8, its place in LaneCommand or LaneReport
//   descriptors     u32, how many travel beside the bytes
//   zero            u32
//   payload bytes   u64
//   payload         the fields as codec/lane_fields.hpp names them
//
// The decoder trusts nothing, and allocates at most about sixteen times the bytes it was given.

#include "base/error.hpp"
#include "device/lane.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace gradsync::device {

/// Goes up with every change of a field, an alternative or their order. Supervisor and worker are one binary: another
/// version is refused, never translated.
inline constexpr std::uint16_t kLaneCodecVersion = 9;

struct LaneMessage {
  std::vector<std::byte> bytes;
  std::vector<UniqueFd> fds;
};

/// Descriptors of the command move into the message.
[[nodiscard]] LaneMessage encode(LaneCommand command);
[[nodiscard]] LaneMessage encode(const LaneReport& report);

/// Errors: InternalError that says at which byte what was found. Then all of `fds` are closed.
[[nodiscard]] Result<LaneCommand> decode_command(std::span<const std::byte> bytes, std::vector<UniqueFd> fds);
[[nodiscard]] Result<LaneReport> decode_report(std::span<const std::byte> bytes, std::vector<UniqueFd> fds);

}  // namespace gradsync::device
