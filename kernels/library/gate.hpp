#pragma once
// Where a stream waits for the coefficient of a step, which the host stores when it has it: the host's side. A step is
// a number, the next one for each; a stream waits until `released` has that of its step.
//
// A thread watches. It reads memory and takes its own lock, and calls neither CUDA nor an interpreter, because the
// trainer's thread may hold their locks while it waits for the very stream that is to be released. Where a step takes
// longer than its patience, first until its rows are there and then until it is released, the thread releases it with
// zeros. Of all who release a step the first one counts.

#include "kernels/clip_outcome.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

namespace gradsync::kernels {

/// What host and device share: memory that was zero, and that both reach.
struct GateWords {
  std::atomic<std::uint64_t> arrived;   ///< the last step whose rows are there; the stream writes it
  std::atomic<std::uint64_t> released;  ///< the last step that was released
  ClipOutcome outcome;                  ///< of that one; the stream reads it
  double norm;
  float norm_as_float;
};

/// One thread begins steps, another may wait for rows and release. The words outlive it.
class Gate {
 public:
  explicit Gate(GateWords& words);
  ~Gate();

  /// Throws where the stream has not come to the step before: what it will read there must not change.
  std::uint64_t begin(std::chrono::duration<double> patience);

  /// Waits until the rows of the last step are there. False: it was released before.
  [[nodiscard]] bool await_rows();

  /// What the stream multiplies by; with `zero` it writes zeros. False: the step was released before.
  bool release(double coefficient, bool zero, double norm);

 private:
  using Clock = std::chrono::steady_clock;

  void watch();
  void release_locked(double coefficient, bool zero, double norm);

  GateWords& words_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t step_ = 0;
  bool waiting_ = false;  ///< the stream waits, or will
  bool arrived_ = false;
  bool ending_ = false;
  std::chrono::duration<double> patience_{};
  Clock::time_point deadline_;
  std::thread watcher_;
};

}  // namespace gradsync::kernels
