#pragma once
// What the floors share: memory as the ranks have it, and threads that make one pass over it together.

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

namespace gradsync::floors {

/// Takes the descriptor.
template <typename T>
T* map_file(int fd, std::size_t count) {
  void* memory = mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (memory == MAP_FAILED) {
    std::perror("floor: mmap");
    std::exit(70);
  }
  close(fd);
  return static_cast<T*>(memory);
}

template <typename T>
T* map_elements(std::size_t count) {
  const int fd = memfd_create("floor", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(count * sizeof(T))) != 0) {
    std::perror("floor: memfd");
    std::exit(70);
  }
  return map_file<T>(fd, count);
}

/// Threads claim chunks from one counter per pass: a static split loses to whatever else runs on the machine.
class Team {
 public:
  using Chunk = std::function<double(std::size_t first, std::size_t count)>;

  explicit Team(unsigned threads) : gate_(threads), partial_(threads) {
    for (unsigned index = 1; index < threads; ++index) {
      workers_.emplace_back([this, index] { work(index); });
    }
  }

  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  ~Team() {
    stop_ = true;
    gate_.arrive_and_wait();
    for (auto& worker : workers_) {
      worker.join();
    }
  }

  /// The sum of what `chunk` returns for all stretches of `count` elements.
  double pass(std::size_t count, const Chunk& chunk) {
    count_ = count;
    chunk_ = &chunk;
    next_ = 0;
    gate_.arrive_and_wait();
    claim(0);
    gate_.arrive_and_wait();
    double total = 0;
    for (const auto& part : partial_) {
      total += part.sum;
    }
    return total;
  }

 private:
  static constexpr std::size_t kChunk = std::size_t{1} << 18;

  struct alignas(64) Partial {
    double sum = 0;
  };

  void work(unsigned index) {
    for (;;) {
      gate_.arrive_and_wait();
      if (stop_) {
        return;
      }
      claim(index);
      gate_.arrive_and_wait();
    }
  }

  void claim(unsigned index) {
    double sum = 0;
    for (std::size_t at; (at = next_.fetch_add(kChunk)) < count_;) {
      sum += (*chunk_)(at, std::min(kChunk, count_ - at));
    }
    partial_[index].sum = sum;
  }

  std::barrier<> gate_;
  std::vector<Partial> partial_;
  alignas(64) std::atomic<std::size_t> next_{0};
  std::size_t count_ = 0;
  const Chunk* chunk_ = nullptr;
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace gradsync::floors
