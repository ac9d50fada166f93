#pragma once
// Counts the bytes that connections make the daemon hold, as answers that they do not read or as messages that they do
// not end, and chooses the connection to close where one process, one uid or all together hold too many.
//
// Thread: io only. Internal to net.

#include "net/types.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

namespace gradsync::net {

class HeldBytes {
 public:
  struct Excess {
    ConnectionId connection = 0;  ///< of the process that holds most of these: its largest, the oldest of several
    std::string whose;            ///< "process 42", "uid 1000" or "all processes"
    std::size_t bytes = 0;        ///< that these hold
    std::size_t most = 0;         ///< that they may hold
  };

  /// One uid may hold three quarters of `most_bytes`, one process half; the daemon's own uid and root all of it. A
  /// process of a pid namespace that is not seen from here has pid 0, as peers by TCP have: it counts for its uid only.
  HeldBytes(std::size_t most_bytes, std::uint32_t own_uid) : most_bytes_(most_bytes), own_uid_(own_uid) {}

  /// Notes what a connection holds from now on. Called at its end with 0.
  [[nodiscard]] std::optional<Excess> note(ConnectionId connection, const PeerIdentity& peer, std::size_t bytes);

  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  using Process = std::pair<std::uint32_t, std::int64_t>;  ///< uid, pid

  struct Held {
    Process process;
    std::size_t bytes = 0;
  };

  void add(const Process& process, std::size_t bytes);
  void take(const Process& process, std::size_t bytes);
  /// Looks among those of that uid, or among all.
  [[nodiscard]] Process process_with_most(std::optional<std::uint32_t> uid) const;
  [[nodiscard]] ConnectionId culprit_of(const Process& process) const;

  std::size_t most_bytes_;
  std::uint32_t own_uid_;
  std::size_t bytes_ = 0;
  std::unordered_map<ConnectionId, Held> held_;
  std::map<Process, std::size_t> of_process_;
  std::map<std::uint32_t, std::size_t> of_uid_;
};

}  // namespace gradsync::net
