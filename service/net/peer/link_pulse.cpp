#include "net/peer/link_pulse.hpp"

#include <chrono>

namespace gradsync::net {

void LinkPulse::heard(TimePoint now) {
  heard_at_ = now;
  reprieved_ = false;
}

std::optional<Milliseconds> LinkPulse::look(TimePoint now, bool unread) {
  const auto silent = std::chrono::floor<Milliseconds>(now - heard_at_);
  if (silent < dead_) {
    return dead_ - silent;
  }
  if (unread && !std::exchange(reprieved_, true)) {
    return beat_;
  }
  return std::nullopt;
}

}  // namespace gradsync::net
