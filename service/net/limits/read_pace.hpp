#pragma once
// Decides when the next bytes of a connection are read. The bytes that came are charged to the connection's process
// (net/limits/fair_share.hpp). Where the process has used more than its share, the connection waits before it is read
// again. It is closed where other connections of the process go first for too long.
//
// Thread: io only. Internal to net.

#include "net/limits/fair_share.hpp"
#include "net/server_context.hpp"
#include "net/socket/asio_types.hpp"

#include <chrono>
#include <cstdint>

namespace gradsync::net {

class ReadPace {
 public:
  /// A ping, or another control frame. The thread needs 3 µs for it, but every pong wakes its receiver, which keeps
  /// the system busy: charged with 3 or 10 µs, pings still slow other processes down.
  static constexpr std::chrono::microseconds kControlFrame{20};
  static constexpr std::chrono::microseconds kSmallPart{2};  ///< a small part of a message
  static constexpr std::chrono::nanoseconds kByte{1};        ///< before the message is looked at
  /// A frame that comes so long after the previous one is free, as pings that keep a connection alive are.
  static constexpr std::chrono::seconds kFreeAfter{1};

  /// A connection that has waited for `longest` gets `TooLong`.
  ReadPace(const ContextPtr& context, const PeerIdentity& peer, ConnectionId id, Milliseconds longest);

  void charge(FairShare::Worth worth, Duration cost) { charge(worth, cost, std::chrono::steady_clock::now()); }

  /// For bytes that brought no message: a control frame, or a small part of a message.
  void charge_frame(Duration cost);

  /// From now on the connection waits for the accounts of its process.
  void answer_for_process() { owes_understood_ = owes_refused_ = true; }

  enum class Turn : std::uint8_t {
    Go,       ///< read
    Wait,     ///< wait for the timer, which is set, then ask again
    TooLong,  ///< close the connection: it has waited too long
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
  Duration prepaid_{};  ///< noted for the next message, after a wait
  TimePoint waits_since_{};
  TimePoint last_frame_{};
  bool owes_understood_ = false;  ///< it waits for this account of its process
  bool owes_refused_ = false;     ///< likewise
  bool stopped_ = false;
};

}  // namespace gradsync::net
