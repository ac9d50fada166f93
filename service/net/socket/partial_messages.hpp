#pragma once
// Counts the bytes that connections hold of unfinished messages, and chooses the connection to close when there are too
// many. Thread: io only. Internal to net.

#include "net/types.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>

namespace gradsync::net {

class PartialMessages {
 public:
  explicit PartialMessages(std::size_t most_bytes) : most_bytes_(most_bytes) {}

  /// Notes that the connection holds that much from now on; 0: nothing. Above the limit it returns the connection to be
  /// closed: that which holds most, the oldest of several, of the process that holds most (peers by TCP count as one).
  /// A message is small beside the limit, so it takes many to reach it, and their process counts.
  [[nodiscard]] std::optional<ConnectionId> hold(ConnectionId connection, const PeerIdentity& peer, std::size_t bytes);

  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  using Process = std::pair<std::uint32_t, std::int64_t>;  ///< uid, pid

  struct Held {
    Process process;
    std::size_t bytes = 0;
  };

  [[nodiscard]] ConnectionId culprit() const;

  std::size_t most_bytes_;
  std::size_t bytes_ = 0;
  std::unordered_map<ConnectionId, Held> held_;
};

}  // namespace gradsync::net
