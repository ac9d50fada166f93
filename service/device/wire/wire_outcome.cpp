#include "device/wire/wire_outcome.hpp"

#include <utility>

namespace gradsync::device {

void WireOutcome::add(const WireDone& done) {
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    first = done_.empty();
    done_.push_back(done);
  }
  if (first) {  // else the owner is woken already, and has yet to take those before
    wake_();
  }
}

void WireOutcome::fail(WireFault fault) {
  {
    const std::lock_guard lock(mutex_);
    if (fault_) {
      return;
    }
    fault_ = std::move(fault);
  }
  wake_();
}

void WireOutcome::take(std::vector<WireDone>& done) {
  const std::lock_guard lock(mutex_);
  done.insert(done.end(), done_.begin(), done_.end());
  done_.clear();
}

std::optional<WireFault> WireOutcome::fault() const {
  const std::lock_guard lock(mutex_);
  return fault_;
}

}  // namespace gradsync::device
