#pragma once
// One connection of a wire, as its reader and its writer share it. Internal to device/wire. Thread: the wire's, but for
// the counts, which its owner reads.

#include "device/wire/wire_outcome.hpp"
#include "device/wire/wire_socket.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace gradsync::device {

/// The bytes that went over both connections to a node.
struct WireCounts {
  std::atomic<std::uint64_t> sent = 0;
  std::atomic<std::uint64_t> received = 0;
};

struct WireEnd {
  /// What one system call moves at most: connections take turns, and the end of a wire waits for one call.
  static constexpr std::size_t kMostAtOnce = 1u << 20;

  WireSocket socket;
  plan::Payload payload = plan::Payload::Partial;
  WireCounts& counts;
  WireOutcome& outcome;
  std::function<void(std::string)> fail;  ///< with the reason; stops every connection of the wire, this one too
  std::function<void()> watch;            ///< this end waits or holds: from now on it is looked at (wire_watch.hpp)
  std::uint64_t received = 0;             ///< bytes, of this connection alone
  bool stopped = false;                   ///< nothing is read or written any more

  /// For messages of faults.
  [[nodiscard]] std::string words() const {
    return payload == plan::Payload::Partial ? "the connection of partial sums" : "the connection of results";
  }

  /// What the system says of the connection, of which `words` is the subject.
  [[nodiscard]] std::string ended_by(const boost::system::error_code& error) const;

  void stop() {
    boost::system::error_code ignored;
    stopped = true;
    socket.cancel(ignored);
  }
};

}  // namespace gradsync::device
