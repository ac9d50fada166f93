#include "device/wire/wire_watch.hpp"

#include <utility>

namespace gradsync::device {

/// The first look at an end that waits counts none: it may have begun to wait just before.
WireWatch::Advice WireWatch::look(const WireLook& now) {
  const bool came = std::exchange(received_, now.received) != now.received;
  held_ = now.holds ? held_ + 1 : 0;
  quiet_ = now.waits && !came ? quiet_ + 1 : 0;
  if (quiet_ > kLooksToGiveUp) {
    return Advice::GiveUp;
  }
  if (quiet_ > 0 && quiet_ % kLooksToSignal == 0) {
    return Advice::Ask;
  }
  return held_ > 0 && held_ % kLooksToSignal == 0 ? Advice::Tell : Advice::Nothing;
}

}  // namespace gradsync::device
