#pragma once
// Messages of a lane over one end of a SOCK_SEQPACKET pair, descriptors by SCM_RIGHTS. A datagram is the size of the
// message (u64) and the message itself; one of more than kInlineBytes lies in a sealed memfd instead, which comes as
// the first descriptor. One thread sends and one receives. Messages from the other end are checked; the descriptors of
// one that is refused are closed.

#include "base/unique_fd.hpp"
#include "device/lane_codec.hpp"

#include <cstddef>
#include <optional>
#include <vector>

namespace gradsync::device {

inline constexpr std::size_t kInlineBytes = 16U << 10;
inline constexpr std::size_t kMostMessageBytes = 1U << 30;

/// A message as it is sent.
struct Packet {
  std::vector<std::byte> datagram;
  std::vector<UniqueFd> fds;
};

/// Throws DeviceError for a message of more than kMostMessageBytes, and where no memfd can be had.
[[nodiscard]] Packet pack(LaneMessage message);

/// Throws DeviceError for what `pack` did not make.
[[nodiscard]] LaneMessage unpack(Packet packet);

class PacketSocket {
 public:
  enum class Sent {
    Done,
    Full,
    Broken
  };  ///< Full: only of a socket that does not block. Broken: the other end is gone

  explicit PacketSocket(UniqueFd fd) : fd_(std::move(fd)) {}

  /// Throws DeviceError for errors that say nothing about the other end.
  [[nodiscard]] Sent send(const Packet& packet);

  /// Nothing: the other end was closed, which `ended` says, or no datagram is there and the socket does not block.
  /// Throws DeviceError for a datagram that is too long or has too many descriptors.
  [[nodiscard]] std::optional<Packet> receive();

  [[nodiscard]] bool ended() const { return ended_; }

  void end_sending() const;  ///< the other end sees the end after what was sent
  void shut_down() const;    ///< both ends see the end, and a thread in `receive` returns

  [[nodiscard]] int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
  bool ended_ = false;
};

}  // namespace gradsync::device
