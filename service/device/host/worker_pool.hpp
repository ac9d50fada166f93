#pragma once
// Threads that share the tasks of one job. Created once, named, parked between jobs, joined at the end. The thread that
// calls `run` works too and counts as worker 0. After a job a worker within the width looks for the next one for
// kLinger before it parks: the passes of a step follow each other sooner than a thread is woken.
//
// Invariants: tasks are claimed one at a time, so a thread that is slowed by a busy trainer leaves its share to the
// others; `run` returns when every task is done and no worker touches the job any more. The width may change from any
// thread at any time: workers beyond it stop at their next claim, and come back when it grows. A job gives way between
// two of its tasks: the thread that called `run` does other work, which may be another `run`, and then goes on with the
// task where it stopped.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace gradsync::device {

/// Tasks 0 … n−1, independent of each other. Must not throw.
class PoolJob {
 public:
  virtual void run_task(std::uint32_t task, std::size_t worker) noexcept = 0;

 protected:
  ~PoolJob() = default;
};

class WorkerPool {
 public:
  static constexpr std::chrono::microseconds kLinger{50};

  WorkerPool(int threads, const std::string& name);  ///< `threads` ≥ 1, the caller of `run` included
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  [[nodiscard]] int threads() const { return static_cast<int>(workers_.size()) + 1; }

  void set_width(int width);                    ///< 1 … threads(); any thread
  void run(std::uint32_t tasks, PoolJob& job);  ///< one thread only; again from within `between`, not from a task

  /// What the thread of `run` does when a job gives way. Each worker of the job does one task before the next time.
  void set_between(std::function<void()> between) { between_ = std::move(between); }

  /// Any thread. Until it is taken back the job gives way.
  void give_way(bool now) { gives_way_.store(now, std::memory_order_relaxed); }

 private:
  /// Runs tasks from `first` on; returns the first that was not begun.
  std::uint32_t run_from(std::uint32_t first, std::uint32_t tasks, PoolJob& job);
  void work(std::size_t worker);
  void claim(std::size_t worker, std::uint32_t tasks, PoolJob& job);
  [[nodiscard]] bool wanted(std::size_t worker) const;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  PoolJob* job_ = nullptr;  ///< guarded by mutex_, as are the next two
  std::uint32_t tasks_ = 0;
  bool stop_ = false;
  std::atomic<int> active_{0};           ///< workers inside the job, the caller not counted; written under mutex_
  std::atomic<std::uint64_t> begun_{0};  ///< jobs, and the end; written under mutex_
  std::atomic<std::uint32_t> next_{0};
  std::atomic<std::size_t> width_;
  std::atomic<bool> gives_way_{false};
  std::function<void()> between_;  ///< of the thread that calls `run`
  std::vector<std::thread> workers_;
};

}  // namespace gradsync::device
