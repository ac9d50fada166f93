#pragma once
// When a link has to send a beat, and when its other end has been silent for too long. Pure: the clock is a parameter.
// Internal to net.

#include "base/clock.hpp"

#include <optional>
#include <utility>

namespace gradsync::net {

class LinkPulse {
 public:
  LinkPulse(Milliseconds beat, Milliseconds dead) : beat_(beat), dead_(dead) {}

  /// Something else than a beat goes out.
  void sent() { sent_ = true; }

  /// Asked once in each beat: nothing went out since it was asked before.
  [[nodiscard]] bool beat_due() { return !std::exchange(sent_, false); }

  void heard(TimePoint now);

  /// How long to wait until it is asked again; nullopt: the other end is dead. `unread`: bytes wait in the socket. They
  /// give it the time of one more beat, because a daemon that was stopped itself may find its timers due before it has
  /// read what came meanwhile.
  [[nodiscard]] std::optional<Milliseconds> look(TimePoint now, bool unread);

 private:
  Milliseconds beat_;
  Milliseconds dead_;
  TimePoint heard_at_{};
  bool sent_ = false;
  bool reprieved_ = false;  ///< since it was heard
};

}  // namespace gradsync::net
