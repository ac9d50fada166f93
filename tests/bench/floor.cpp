// The floor of the step benchmarks: the same passes over the same bytes as a step with clipping, in the barest loop
// this compiler makes for this machine (built with -Ofast -march=native, unlike anything else here). No protocol, no
// readiness, no fixed summation order, no NaN rule, no watch: a bound to compare with, never a competitor.
//
//   reduce pass   read both ranks' buffers, write both, sum the squares of what was written
//   scale pass    read one rank's buffer, equal to the other by now, and write both
//
// Per element of both ranks that is 3 reads and 4 writes. Commands arrive on stdin, one per line: `fill`, `step`,
// `quit`.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t kChunk = std::size_t{1} << 18;
constexpr double kMaxNorm = 1.0;

struct Bfloat16 {
  std::uint16_t bits;
};

inline float widen(float value) { return value; }

inline float widen(Bfloat16 value) { return std::bit_cast<float>(std::uint32_t{value.bits} << 16); }

inline void narrow(float value, float& out) { out = value; }

inline void narrow(float value, Bfloat16& out) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  out.bits = static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

template <typename T>
T* map_elements(std::size_t count) {
  const int fd = memfd_create("floor", MFD_CLOEXEC);
  const std::size_t bytes = count * sizeof(T);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    std::perror("floor: memfd");
    std::exit(70);
  }
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (memory == MAP_FAILED) {
    std::perror("floor: mmap");
    std::exit(70);
  }
  close(fd);
  return static_cast<T*>(memory);
}

template <typename T>
float reduce(T* __restrict a, T* __restrict b, std::size_t count) {
  float squares = 0;
  for (std::size_t i = 0; i < count; ++i) {
    T stored;
    narrow((widen(a[i]) + widen(b[i])) * 0.5F, stored);
    a[i] = stored;
    b[i] = stored;
    const float value = widen(stored);
    squares += value * value;
  }
  return squares;
}

template <typename T>
void scale(T* __restrict a, T* __restrict b, std::size_t count, float coefficient) {
  for (std::size_t i = 0; i < count; ++i) {
    T scaled;
    narrow(widen(a[i]) * coefficient, scaled);
    a[i] = scaled;
    b[i] = scaled;
  }
}

/// Threads claim chunks from one counter per pass: a static split loses to whatever else runs on the machine.
template <typename T>
class Floor {
 public:
  Floor(std::size_t count, unsigned threads)
      : count_(count), a_(map_elements<T>(count)), b_(map_elements<T>(count)), gate_(threads), partial_(threads) {
    for (unsigned index = 1; index < threads; ++index) {
      workers_.emplace_back([this, index] { work(index); });
    }
  }

  ~Floor() {
    stop_ = true;
    gate_.arrive_and_wait();
    for (auto& worker : workers_) {
      worker.join();
    }
  }

  void fill() {
    std::uint32_t state = 1;
    for (std::size_t i = 0; i < count_; ++i) {
      state = state * 1664525 + 1013904223;
      const float value = static_cast<float>(state >> 8) * 0x1p-24F - 0.5F;
      narrow(value, a_[i]);
      narrow(value * 0.75F, b_[i]);
    }
  }

  double step() {
    next_reduce_ = 0;
    next_scale_ = 0;
    const auto begin = std::chrono::steady_clock::now();
    gate_.arrive_and_wait();
    passes(0);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

 private:
  void work(unsigned index) {
    for (;;) {
      gate_.arrive_and_wait();
      if (stop_) {
        return;
      }
      passes(index);
    }
  }

  void passes(unsigned index) {
    double squares = 0;
    for (std::size_t at; (at = next_reduce_.fetch_add(kChunk)) < count_;) {
      squares += reduce(a_ + at, b_ + at, std::min(kChunk, count_ - at));
    }
    partial_[index].squares = squares;
    gate_.arrive_and_wait();
    double total = 0;
    for (const auto& part : partial_) {
      total += part.squares;
    }
    const auto coefficient = static_cast<float>(std::min(1.0, kMaxNorm / std::sqrt(total)));
    for (std::size_t at; (at = next_scale_.fetch_add(kChunk)) < count_;) {
      scale(a_ + at, b_ + at, std::min(kChunk, count_ - at), coefficient);
    }
    gate_.arrive_and_wait();
  }

  struct alignas(64) Partial {
    double squares = 0;
  };

  std::size_t count_;
  T* a_;
  T* b_;
  std::barrier<> gate_;
  std::vector<Partial> partial_;
  alignas(64) std::atomic<std::size_t> next_reduce_{0};
  alignas(64) std::atomic<std::size_t> next_scale_{0};
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

template <typename T>
void serve(std::size_t count, unsigned threads) {
  Floor<T> floor{count, threads};
  std::cout << "ready" << std::endl;
  for (std::string command; std::getline(std::cin, command) && command != "quit";) {
    if (command == "fill") {
      floor.fill();
      std::cout << "filled" << std::endl;
    } else {
      std::cout << floor.step() << std::endl;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string dtype = argc == 4 ? argv[1] : "";
  if (dtype != "float32" && dtype != "bfloat16") {
    std::cerr << "usage: bench_floor float32|bfloat16 ELEMENTS THREADS\n";
    return 64;
  }
  std::cout.precision(9);
  const std::size_t count = std::stoull(argv[2]);
  const auto threads = static_cast<unsigned>(std::stoul(argv[3]));
  dtype == "float32" ? serve<float>(count, threads) : serve<Bfloat16>(count, threads);
  return 0;
}
