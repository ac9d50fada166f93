#pragma once
// The way to end planning early on another thread: the plan of many tensors takes seconds, and its job may be gone.

#include <atomic>
#include <exception>

namespace gradsync::plan {

/// Thrown out of planning; no plan was made.
struct Interrupted : std::exception {
  [[nodiscard]] const char* what() const noexcept override { return "planning was interrupted"; }
};

/// While it lives, planning on this thread throws Interrupted soon after `flag` is raised.
class Interruptible {
 public:
  explicit Interruptible(const std::atomic<bool>& flag);
  ~Interruptible();
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;
};

/// Called for each tensor of each long loop.
void interruption_point();

}  // namespace gradsync::plan
