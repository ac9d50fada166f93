#pragma once
// What benches of the host lane share: arenas, reports as they come, and samples of wall and CPU time.

#include "device/host/host_lane.hpp"
#include "device/memory/arena.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <mutex>
#include <utility>
#include <variant>
#include <vector>

namespace gradsync::device {

using Clock = std::chrono::steady_clock;

/// Wall time, and CPU time of all threads: on a busy machine only the second says anything.
struct Moment {
  Clock::time_point wall = Clock::now();
  double cpu_ms = cpu_now_ms();

  static double cpu_now_ms() {
    timespec now{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
  }
};

struct Samples {
  std::vector<double> wall_ms;
  std::vector<double> cpu_ms;

  void add_since(const Moment& start) {
    cpu_ms.push_back(Moment::cpu_now_ms() - start.cpu_ms);
    wall_ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start.wall).count());
  }
};

class Reports {
 public:
  void put(LaneReport report) {
    const std::lock_guard lock(mutex_);
    reports_.push_back(std::move(report));
    arrived_.notify_one();
  }

  LaneReport take() {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [this] { return !reports_.empty(); });
    LaneReport report = std::move(reports_.front());
    reports_.pop_front();
    if (const auto* failed = std::get_if<Failed>(&report)) {
      std::fprintf(stderr, "bench: %s\n", failed->message.c_str());
      std::exit(70);
    }
    return report;
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<LaneReport> reports_;
};

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Summary {
  double wall = 0;
  double cpu = 0;
};

inline Summary summarise(const Samples& samples) { return {median(samples.wall_ms), median(samples.cpu_ms)}; }

inline Summary operator+(Summary a, Summary b) { return {a.wall + b.wall, a.cpu + b.cpu}; }

struct Arena {
  UniqueFd fd;
  void* data = nullptr;
};

inline Arena make_arena(std::uint64_t bytes) {
  auto fd = create_arena(bytes);
  if (!fd) {
    std::fprintf(stderr, "bench: %s\n", fd.error().message.c_str());
    std::exit(70);
  }
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd->get(), 0);
  return {std::move(*fd), data};
}

}  // namespace gradsync::device
