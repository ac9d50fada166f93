#include "device/host/worker_pool.hpp"

#include "base/assert.hpp"
#include "base/older_runtime.hpp"
#include "base/thread_name.hpp"

#include <algorithm>

namespace gradsync::device {

namespace {

template <typename Condition>
void linger_until(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + WorkerPool::kLinger;
  while (!condition() && std::chrono::steady_clock::now() < end) {
    std::this_thread::yield();
  }
}

}  // namespace

WorkerPool::WorkerPool(int threads, const std::string& name) : width_(static_cast<std::size_t>(threads)) {
  GRADSYNC_ASSERT(threads >= 1, "a pool has at least the thread that uses it");
  for (std::size_t worker = 1; worker < static_cast<std::size_t>(threads); ++worker) {
    workers_.emplace_back([this, worker, name] {
      name_this_thread(name + "/" + std::to_string(worker));
      work(worker);
    });
  }
}

WorkerPool::~WorkerPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    begun_.fetch_add(1, std::memory_order_relaxed);
  }
  wake_.notify_all();
  for (std::thread& thread : workers_) {
    thread.join();
  }
}

void WorkerPool::set_width(int width) {
  bool wakes = false;
  {
    // Under the lock, so that a worker about to park sees the new width or is woken for it. Between jobs no worker is
    // woken: the next job does that, where it has work for more than one.
    const std::lock_guard lock(mutex_);
    width_.store(static_cast<std::size_t>(std::clamp(width, 1, threads())), std::memory_order_relaxed);
    wakes = job_ != nullptr;
  }
  if (wakes) {
    wake_.notify_all();
  }
}

void WorkerPool::run(std::uint32_t tasks, PoolJob& job) {
  std::uint32_t first = 0;
  while (first < tasks) {
    if (gives_way_.load(std::memory_order_relaxed) && between_) {
      between_();
    }
    first = run_from(first, tasks, job);
  }
}

std::uint32_t WorkerPool::run_from(std::uint32_t first, std::uint32_t tasks, PoolJob& job) {
  {
    const std::lock_guard lock(mutex_);
    next_.store(first, std::memory_order_relaxed);
    tasks_ = tasks;
    job_ = &job;
    begun_.fetch_add(1, std::memory_order_relaxed);
  }
  if (tasks - first > 1 && width_.load(std::memory_order_relaxed) > 1) {
    wake_.notify_all();
  }
  claim(0, tasks, job);
  linger_until([this] { return active_.load(std::memory_order_relaxed) == 0; });
  std::unique_lock lock(mutex_);
  // The caller leaves its claims only when none are left (worker 0 is always within the width) or the job gives way.
  job_ = nullptr;
  done_.wait(lock, [this] { return active_ == 0; });
  return std::min(next_.load(std::memory_order_relaxed), tasks);
}

bool WorkerPool::wanted(std::size_t worker) const {
  return job_ != nullptr && worker < width_.load(std::memory_order_relaxed) &&
         next_.load(std::memory_order_relaxed) < tasks_ && !gives_way_.load(std::memory_order_relaxed);
}

void WorkerPool::work(std::size_t worker) {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stop_ || wanted(worker); });
    if (stop_) {
      return;
    }
    const std::uint64_t begun = begun_.load(std::memory_order_relaxed);
    PoolJob& job = *job_;
    const std::uint32_t tasks = tasks_;
    active_.fetch_add(1, std::memory_order_relaxed);
    lock.unlock();
    claim(worker, tasks, job);
    lock.lock();
    if (active_.fetch_sub(1, std::memory_order_relaxed) == 1) {
      done_.notify_one();
    }
    if (worker < width_.load(std::memory_order_relaxed)) {
      lock.unlock();
      linger_until([&] { return begun_.load(std::memory_order_relaxed) != begun; });
      lock.lock();
    }
  }
}

void WorkerPool::claim(std::size_t worker, std::uint32_t tasks, PoolJob& job) {
  do {
    if (worker >= width_.load(std::memory_order_relaxed)) {
      return;
    }
    const std::uint32_t task = next_.fetch_add(1, std::memory_order_relaxed);
    if (task >= tasks) {
      return;
    }
    job.run_task(task, worker);
  } while (!gives_way_.load(std::memory_order_relaxed));
}

}  // namespace gradsync::device
