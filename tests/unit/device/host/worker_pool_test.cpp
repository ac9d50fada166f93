#include "device/host/worker_pool.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

namespace gradsync::device {
namespace {

class CountingJob final : public PoolJob {
 public:
  explicit CountingJob(std::size_t tasks) : runs_(tasks) {}

  void run_task(std::uint32_t task, std::size_t worker) noexcept override {
    runs_[task].fetch_add(1);
    const std::lock_guard lock(mutex_);
    workers_.insert(worker);
  }

  [[nodiscard]] bool each_ran_once() const {
    return std::all_of(runs_.begin(), runs_.end(), [](const auto& runs) { return runs == 1; });
  }

  [[nodiscard]] const std::set<std::size_t>& workers() const { return workers_; }

 private:
  std::vector<std::atomic<int>> runs_;
  std::mutex mutex_;
  std::set<std::size_t> workers_;
};

/// Every task waits until `parties` workers are inside one at the same time.
class MeetingJob final : public PoolJob {
 public:
  explicit MeetingJob(std::size_t parties) : parties_(parties) {}

  void run_task(std::uint32_t task, std::size_t worker) noexcept override {
    if (task == 0 && on_first) {
      on_first();
    }
    std::unique_lock lock(mutex_);
    workers_.insert(worker);
    met_.notify_all();
    met_.wait_for(lock, std::chrono::seconds(60), [this] { return workers_.size() >= parties_; });
  }

  [[nodiscard]] bool met() const { return workers_.size() >= parties_; }

  std::function<void()> on_first;

 private:
  std::size_t parties_;
  std::mutex mutex_;
  std::condition_variable met_;
  std::set<std::size_t> workers_;
};

TEST(WorkerPool, runs_each_task_once_at_every_width) {
  for (const int threads : {1, 2, 3, 4, 8}) {
    WorkerPool pool(threads, "test");
    for (int width = 1; width <= threads; ++width) {
      pool.set_width(width);
      for (const std::size_t tasks : {0, 1, 2, 7, 1000}) {
        CountingJob job(tasks);
        pool.run(static_cast<std::uint32_t>(tasks), job);
        EXPECT_TRUE(job.each_ran_once()) << threads << " threads, " << tasks << " tasks";
      }
    }
  }
}

TEST(WorkerPool, all_threads_work_at_once) {
  WorkerPool pool(4, "test");
  MeetingJob job(4);
  pool.run(4, job);
  EXPECT_TRUE(job.met());
}

TEST(WorkerPool, a_narrow_pool_leaves_the_others_parked) {
  WorkerPool pool(4, "test");
  pool.set_width(1);
  CountingJob job(500);
  pool.run(500, job);
  EXPECT_EQ(job.workers(), std::set<std::size_t>{0});
}

TEST(WorkerPool, widening_reaches_work_that_is_already_running) {
  WorkerPool pool(3, "test");
  pool.set_width(1);
  MeetingJob job(3);
  job.on_first = [&] { pool.set_width(3); };
  pool.run(10, job);
  EXPECT_TRUE(job.met());
}

TEST(WorkerPool, narrowing_reaches_work_that_is_already_running) {
  WorkerPool pool(2, "test");
  MeetingJob job(2);
  pool.run(2, job);  // both threads are in use

  class Narrowing final : public PoolJob {
   public:
    explicit Narrowing(WorkerPool& pool) : pool_(pool) {}

    void run_task(std::uint32_t task, std::size_t worker) noexcept override {
      if (task == 0) {
        pool_.set_width(1);
        narrowed_ = true;
      }
      // A worker that was already between its check and its claim may take one more.
      late_ += narrowed_ && worker != 0 && task > 0 ? 1 : 0;
    }

    std::atomic<int> late_{0};

   private:
    WorkerPool& pool_;
    std::atomic<bool> narrowed_{false};
  } job_after(pool);

  pool.run(10'000, job_after);
  EXPECT_LE(job_after.late_, 1);
}

TEST(WorkerPool, a_job_gives_way_between_two_tasks_and_goes_on_where_it_stopped) {
  for (const int threads : {1, 2, 4}) {
    WorkerPool pool(threads, "test");

    class Yielding final : public PoolJob {
     public:
      explicit Yielding(WorkerPool& pool) : pool_(pool) {}

      void run_task(std::uint32_t task, std::size_t /*worker*/) noexcept override {
        runs_[task].fetch_add(1);
        ++inside_;
        if (task % 10 == 3) {
          pool_.give_way(true);
        }
        --inside_;
      }

      std::array<std::atomic<int>, 100> runs_{};
      std::atomic<int> inside_{0};

     private:
      WorkerPool& pool_;
    } yielding(pool);

    int others = 0;
    pool.set_between([&] {
      EXPECT_EQ(yielding.inside_, 0);
      pool.give_way(false);
      CountingJob other(7);
      pool.run(7, other);
      others += other.each_ran_once() ? 1 : 0;
    });
    pool.run(100, yielding);
    EXPECT_TRUE(std::all_of(yielding.runs_.begin(), yielding.runs_.end(), [](const auto& runs) { return runs == 1; }));
    EXPECT_GE(others, 1) << threads;
    EXPECT_LE(others, 10) << threads;
  }
}

// What gives way all the time comes to its end.
TEST(WorkerPool, each_worker_does_a_task_before_the_job_gives_way_again) {
  WorkerPool pool(1, "test");
  CountingJob job(50);
  int times = 0;
  pool.set_between([&times] { ++times; });
  pool.give_way(true);
  pool.run(50, job);
  EXPECT_TRUE(job.each_ran_once());
  EXPECT_EQ(times, 50);
}

}  // namespace
}  // namespace gradsync::device
