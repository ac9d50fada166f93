#pragma once
// Closes descriptors that others may have had a hand in, on a thread of its own. A `close` can wait: for a connection
// whose data are unsent (SO_LINGER), for a file system in somebody's process. So can the close of a unix socket that
// still has descriptors in its queue. The thread is interrupted every `kPatience`, which ends the waits that a signal
// can end. While it hangs in one that goes on, another one takes the next: up to `kMostThreads`, one of them spare.
//
// Thread: any may call; started and joined here. Internal to net.

#include "base/clock.hpp"
#include "base/unique_fd.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>

namespace gradsync::net {

class Closer {
 public:
  static constexpr Milliseconds kPatience{2};
  static constexpr Milliseconds kGoodbye{1'000};
  static constexpr Milliseconds kHangs{1'000};  ///< without an end for so long, another thread takes the next
  static constexpr std::size_t kMostThreads = 4;
  static constexpr std::size_t kMostGoodbyes = 128;

  Closer();
  /// Waits for a second; descriptors that are not closed by then end with the process.
  ~Closer();
  Closer(const Closer&) = delete;
  Closer& operator=(const Closer&) = delete;

  /// The peer of a socket sees the end at once; the descriptor is closed later.
  void close(UniqueFd fd, std::uint32_t uid);

  /// The same after `kGoodbye`, so that a peer that is still sending can read the answer. Nothing that it sends is
  /// read.
  void close_after_goodbye(UniqueFd fd, std::uint32_t uid);

  /// Descriptors of the uid that are not closed yet.
  [[nodiscard]] std::size_t pending(std::uint32_t uid) const;

 private:
  struct State;
  std::shared_ptr<State> state_;  ///< shared with threads that hang
};

}  // namespace gradsync::net
