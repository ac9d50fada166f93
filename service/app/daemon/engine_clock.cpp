#include "app/daemon/engine_clock.hpp"

namespace gradsync::app {

void EngineClock::arm() {
  const std::optional<TimePoint> next = engine_.next_deadline();
  if (stopped_ || !next || (armed_ && *armed_ <= *next)) {
    return;
  }
  armed_ = next;
  timer_.expires_at(*next);
  timer_.async_wait([this](boost::system::error_code error) {
    if (!error && !stopped_) {
      armed_.reset();
      turn("a deadline", [] {});
    }
  });
}

void EngineClock::stop() {
  stopped_ = true;
  timer_.cancel();
}

}  // namespace gradsync::app
