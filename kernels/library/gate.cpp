#include "kernels/library/gate.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace gradsync::kernels {

namespace {

constexpr std::chrono::microseconds kGlance{50};  // how often the watcher looks for rows
constexpr std::chrono::hours kUntilTold{1};       // `wait` itself needs the runtime of GCC 12, which RHEL 9 has not

}  // namespace

Gate::Gate(GateWords& words) : words_(words), watcher_([this] { watch(); }) {}

Gate::~Gate() {
  {
    const std::scoped_lock lock(mutex_);
    ending_ = true;
    if (waiting_) {
      release_locked(0, true, std::numeric_limits<double>::quiet_NaN());
    }
  }
  changed_.notify_all();
  watcher_.join();
}

std::uint64_t Gate::begin(std::chrono::duration<double> patience) {
  const std::scoped_lock lock(mutex_);
  if (waiting_ || words_.arrived.load(std::memory_order_acquire) < step_) {
    throw std::runtime_error("the stream has not come to the step before");
  }
  ++step_;
  waiting_ = true;
  arrived_ = false;
  patience_ = patience;
  deadline_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(patience);
  changed_.notify_all();
  return step_;
}

bool Gate::await_rows() {
  std::unique_lock lock(mutex_);
  while (!arrived_ && waiting_) {
    changed_.wait_for(lock, kUntilTold);
  }
  return waiting_;
}

bool Gate::release(double coefficient, bool zero, double norm) {
  const std::scoped_lock lock(mutex_);
  if (!waiting_) {
    return false;
  }
  release_locked(coefficient, zero, norm);
  return true;
}

void Gate::release_locked(double coefficient, bool zero, double norm) {
  words_.outcome = {};
  words_.outcome.multiplier = zero ? 0 : coefficient;
  words_.outcome.multiply = zero ? kWriteZeros : 1;
  words_.norm = norm;
  words_.norm_as_float = static_cast<float>(norm);
  words_.released.store(step_, std::memory_order_release);
  waiting_ = false;
  changed_.notify_all();
}

void Gate::watch() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    if (!waiting_) {
      changed_.wait_for(lock, kUntilTold);
      continue;
    }
    const Clock::time_point now = Clock::now();
    if (!arrived_ && words_.arrived.load(std::memory_order_acquire) >= step_) {
      arrived_ = true;
      deadline_ = now + std::chrono::duration_cast<Clock::duration>(patience_);
      changed_.notify_all();
    }
    if (now >= deadline_) {
      release_locked(0, true, std::numeric_limits<double>::quiet_NaN());
    } else {
      changed_.wait_until(lock, arrived_ ? deadline_ : std::min(deadline_, now + kGlance));
    }
  }
}

}  // namespace gradsync::kernels
