#pragma once
// Deadlines of a session, which may be gone when one passes. Thread: io only. Internal to net.

#include "base/clock.hpp"
#include "net/socket/asio_types.hpp"

#include <memory>
#include <utility>

namespace gradsync::net {

/// Calls `then(session)` after the wait, unless the timer is stopped or set anew, or the session is gone by then. The
/// timer is a member of the session. A wait that has expired and is queued cannot be cancelled and comes without an
/// error; the timer's expiry says whether it is still valid.
template <typename Session, typename Then>
void after(Timer& timer, Milliseconds wait, std::weak_ptr<Session> owner, Then then) {
  timer.expires_after(wait);
  timer.async_wait([owner = std::move(owner), &timer, then](boost::system::error_code error) {
    const auto session = owner.lock();
    if (!error && session && timer.expiry() <= Timer::clock_type::now()) {
      then(*session);
    }
  });
}

inline void stop(Timer& timer) { timer.expires_at(Timer::time_point::max()); }

}  // namespace gradsync::net
