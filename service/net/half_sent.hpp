#pragma once
// What connections hold of messages that have begun and not ended, and who has to go when it is too much. Thread: io
// only. Internal to net.

#include "net/server.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>

namespace gradsync::net {

class HalfSent {
 public:
  explicit HalfSent(std::size_t most_bytes) : most_bytes_(most_bytes) {}

  /// The connection holds that much from now on; 0: nothing. Over the limit, the connection to be closed: a message is
  /// small beside the limit, so it takes many to get there, and what counts is whose they are. Of the process that
  /// holds most (peers by TCP count as one) the connection that holds most, the oldest of several.
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
