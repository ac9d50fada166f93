#pragma once
// When the next bytes of a connection are read. What came over it is charged to its process (net/fair_share.hpp); where
// the process has used more than its share, the connection waits before it is read again, and where other connections
// of the process go first for too long, it ends.
//
// Thread: io only. Internal to net.

#include "net/asio_types.hpp"
#include "net/fair_share.hpp"
#include "net/server_context.hpp"

#include <chrono>
#include <cstdint>

namespace gradsync::net {

class ReadPace {
 public:
  /// A ping, or another frame of control. The thread is done with it in 3; but every pong wakes its receiver, which
  /// keeps the system busy, so that charged with 3 or 10 pings still are felt by others.
  static constexpr std::chrono::microseconds kControlFrame{20};
  static constexpr std::chrono::microseconds kSmallPart{2};  ///< of a message
  static constexpr std::chrono::nanoseconds kByte{1};        ///< before anybody looks at the message
  /// A frame that comes as long after the one before is free: so is every ping that keeps a connection alive.
  static constexpr std::chrono::seconds kFreeAfter{1};

  /// Who has waited for as long as `longest` is told `TooLong`.
  ReadPace(const ContextPtr& context, const PeerIdentity& peer, ConnectionId id, Milliseconds longest);

  void charge(FairShare::Worth worth, Duration cost) { charge(worth, cost, std::chrono::steady_clock::now()); }

  /// That brought no message: a frame of control, or a small part of a message.
  void charge_frame(Duration cost);

  /// What comes next waits for what any connection of the process has used.
  void answer_for_process() { owes_understood_ = owes_refused_ = true; }

  enum class Turn : std::uint8_t {
    Go,       ///< read
    Wait,     ///< for the timer, which is set, and ask again
    TooLong,  ///< it has waited for so long that the connection is to end
    Stopped,
  };

  [[nodiscard]] Turn next() {
    if (!owes_understood_ && !owes_refused_ && !stopped_) {
      spent_ = {};
      return Turn::Go;
    }
    return next_of_debtor();
  }

  [[nodiscard]] Timer& timer() { return timer_; }

  /// Nothing is read any more.
  void stop() {
    stopped_ = true;
    timer_.cancel();
  }

  [[nodiscard]] Milliseconds longest() const { return longest_; }

 private:
  void charge(FairShare::Worth worth, Duration cost, TimePoint now);
  [[nodiscard]] Turn next_of_debtor();

  ContextPtr context_;
  PeerIdentity peer_;
  ConnectionId id_;
  Milliseconds longest_;
  Timer timer_;
  Duration spent_{};    ///< since it was read last
  Duration prepaid_{};  ///< for what is read next, by who has waited
  TimePoint waits_since_{};
  TimePoint last_frame_{};
  bool owes_understood_ = false;  ///< it waits for this account of its process
  bool owes_refused_ = false;     ///< likewise
  bool stopped_ = false;
};

}  // namespace gradsync::net
