#pragma once
// Counts the answers that connections do not read, and chooses the connection to close where one process, one uid or
// all together leave too many. Small queues are not counted: they are what a reader leaves that is only slow.
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

class UnreadAnswers {
 public:
  static constexpr std::size_t kFreeBytes = 16 * 1024;  ///< of a connection

  struct Excess {
    ConnectionId connection = 0;  ///< the one that holds most of those to blame, the oldest of several
    std::string why;              ///< names the use and the limit
  };

  /// One uid may leave three quarters of `most_bytes`, one process half; the daemon's own uid and root all of it.
  UnreadAnswers(std::size_t most_bytes, std::uint32_t own_uid) : most_bytes_(most_bytes), own_uid_(own_uid) {}

  /// Notes what a connection leaves from now on. Called at its end with 0.
  [[nodiscard]] std::optional<Excess> note(ConnectionId connection, const PeerIdentity& peer, std::size_t bytes);

  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  using Process = std::pair<std::uint32_t, std::int64_t>;  ///< uid, pid

  struct Left {
    Process process;
    std::size_t bytes = 0;
  };

  void add(const Process& process, std::size_t bytes);
  void take(const Process& process, std::size_t bytes);
  [[nodiscard]] Process process_with_most() const;
  [[nodiscard]] Excess excess_of(const Process& process, std::string why) const;

  std::size_t most_bytes_;
  std::uint32_t own_uid_;
  std::size_t bytes_ = 0;
  std::unordered_map<ConnectionId, Left> left_;
  std::map<Process, std::size_t> of_process_;
  std::map<std::uint32_t, std::size_t> of_uid_;
};

}  // namespace gradsync::net
