#include "plan/interrupt.hpp"

namespace gradsync::plan {

namespace {
thread_local const std::atomic<bool>* interrupt = nullptr;
}

Interruptible::Interruptible(const std::atomic<bool>& flag) { interrupt = &flag; }

Interruptible::~Interruptible() { interrupt = nullptr; }

void interruption_point() {
  if (interrupt != nullptr && interrupt->load(std::memory_order_relaxed)) {
    throw Interrupted();
  }
}

}  // namespace gradsync::plan
