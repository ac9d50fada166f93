// How far a pass goes on after it was aborted: to the end of the chunk in hand. Pages that may not be touched stand
// between the chunks; touching one raises the flag from within the pass, so that nothing here depends on time.

#include "device/device_error.hpp"
#include "device/host/host_passes.hpp"
#include "device/step/bucket_step.hpp"
#include "device/step/step_finish.hpp"
#include "unit/device/whole_tensors.hpp"

#include <gtest/gtest.h>

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <optional>
#include <vector>

namespace gradsync::device {
namespace {

/// Turns the first touch of a protected chunk into the abort; every further touch of a protected page is counted.
struct Trap {
  std::byte* first = nullptr;
  std::size_t bytes = 0;
  bool raises = true;
};

std::vector<Trap> traps;  // in the order in which they are set; each sets the next
std::atomic<std::size_t> sprung{0};
std::atomic<bool> cancelled{false};
struct sigaction previous;

void set_trap() {
  if (sprung < traps.size()) {
    ::mprotect(traps[sprung].first, traps[sprung].bytes, PROT_NONE);
  }
}

void on_fault(int signal, siginfo_t* info, void* /*context*/) {
  const auto* at = static_cast<std::byte*>(info->si_addr);
  const std::size_t current = sprung;
  if (current >= traps.size() || at < traps[current].first || at >= traps[current].first + traps[current].bytes) {
    ::sigaction(signal, &previous, nullptr);  // not ours: it happens again, without this handler
    return;
  }
  ::mprotect(traps[current].first, traps[current].bytes, PROT_READ | PROT_WRITE);
  if (traps[current].raises) {
    cancelled = true;
  }
  sprung = current + 1;
  set_trap();
}

/// One tensor of eight chunks, alone on its rank and page-aligned; one thread. Scattered: half of its columns, four
/// chunks, go to an output of their own behind it.
template <typename T>
class Chunks {
 public:
  static constexpr std::size_t kChunks = 8;
  static constexpr std::size_t kBytes = kChunkElements * sizeof(T);
  static constexpr std::size_t kSize = 2 * kChunks * kBytes;

  explicit Chunks(T value, double norm_type = 2, bool is_scattered = false)
      : layout_(empty_layout(1, norm_type)), output_(is_scattered ? kChunks : 0) {
    add_bucket(layout_, sizeof(T) == 8 ? plan::DType::Float64 : plan::DType::Float32, {{0}}, 2);
    add_tensor(layout_, 0, kChunks * kChunkElements, 0);
    if (is_scattered) {
      layout_.parts[0] = {0, 0, kChunks * kChunkElements / 2, 0, 64, {{kChunks * kChunkElements / 128, 128}}};
      layout_.arenas[0].output[0] = kChunks * kBytes;
    }
    memory_ = static_cast<T*>(::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    std::fill(memory_, memory_ + kSize / sizeof(T), value);
    plan_.emplace(layout_, std::vector<BufferView>{{reinterpret_cast<std::byte*>(memory_), kSize}}, 1);
    cancelled = false;
    sprung = 0;
    traps.clear();

    struct sigaction action {};

    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO;
    ::sigaction(SIGSEGV, &action, &previous);
  }

  Chunks(const Chunks&) = delete;
  Chunks& operator=(const Chunks&) = delete;

  ~Chunks() {
    ::sigaction(SIGSEGV, &previous, nullptr);
    ::munmap(memory_, kSize);
  }

  /// Chunks of the output.
  void trap(std::size_t first, std::size_t last, bool raises) {
    std::byte* output = reinterpret_cast<std::byte*>(memory_) + output_ * kBytes;
    traps.push_back({output + first * kBytes, (last + 1 - first) * kBytes, raises});
  }

  template <typename Pass>
  void expect_aborted_after(std::size_t touches, Pass pass) {
    set_trap();
    try {
      pass(*plan_, pool_);
      ADD_FAILURE() << "the pass went on to its end";
    } catch (const DeviceError& error) {
      EXPECT_EQ(error.kind(), DeviceError::Kind::Aborted) << error.what();
    }
    EXPECT_EQ(sprung, touches);
    ::mprotect(memory_, kSize, PROT_READ | PROT_WRITE);
  }

  [[nodiscard]] std::vector<T> heads() const {
    std::vector<T> values;
    for (std::size_t chunk = 0; chunk < kChunks; ++chunk) {
      values.push_back(memory_[(output_ + chunk) * kChunkElements]);
    }
    return values;
  }

  [[nodiscard]] LoadedPlan& plan() { return *plan_; }

  [[nodiscard]] WorkerPool& pool() { return pool_; }

 private:
  LanePlan layout_;
  std::size_t output_;  ///< the chunk at which it begins
  T* memory_ = nullptr;
  std::optional<LoadedPlan> plan_;
  WorkerPool pool_{1, "test"};
};

const auto kReduce = [](LoadedPlan& plan, WorkerPool& pool) {
  reduce_bucket(plan, {1, 1, 0, {}, false}, HostPasses(pool, cancelled));
};

TEST(AbortBound, a_reduction_ends_with_the_chunk_in_hand) {
  Chunks<float> chunks(4);
  chunks.trap(3, 3, true);
  chunks.trap(4, 7, false);
  chunks.expect_aborted_after(1, kReduce);
  EXPECT_EQ(chunks.heads(), (std::vector<float>{2, 2, 2, 2, 4, 4, 4, 4}));
}

TEST(AbortBound, so_does_a_reduction_for_a_norm_that_takes_pow) {
  Chunks<float> chunks(4, 3.5);
  chunks.trap(3, 3, true);
  chunks.trap(4, 7, false);
  chunks.expect_aborted_after(1, kReduce);
}

TEST(AbortBound, so_does_one_of_a_scattered_tensor) {
  Chunks<float> chunks(4, 2, true);
  chunks.trap(1, 1, true);
  chunks.trap(2, 3, false);
  chunks.expect_aborted_after(1, kReduce);
  EXPECT_EQ(chunks.heads(), (std::vector<float>{2, 2, 4, 4, 4, 4, 4, 4}));
  cancelled = false;  // the inputs are as they were: another attempt finds them
  reduce_bucket(chunks.plan(), {1, 2, 0, {}, false}, HostPasses(chunks.pool(), cancelled));
  EXPECT_EQ(chunks.heads(), (std::vector<float>{2, 2, 2, 2, 4, 4, 4, 4}));
}

TEST(AbortBound, the_second_reading_of_rescaled_tensors_ends_likewise) {
  Chunks<double> chunks(1e200);
  chunks.trap(7, 7, false);  // the first reading comes to its end
  chunks.trap(2, 2, true);
  chunks.trap(3, 7, false);
  chunks.expect_aborted_after(2, kReduce);
}

TEST(AbortBound, the_scale_pass_ends_with_the_chunk_in_hand) {
  Chunks<float> chunks(4);
  kReduce(chunks.plan(), chunks.pool());
  chunks.trap(5, 5, true);
  chunks.trap(6, 7, false);
  plan::ClipRule half;
  half.max_norm = std::sqrt(4.0 * 8 * kChunkElements) / 2;
  chunks.expect_aborted_after(1, [&](LoadedPlan& plan, WorkerPool& pool) {
    (void)finish_step(plan, {1, 1, 1.0, {half}, true}, HostPasses(pool, cancelled));
  });
  EXPECT_EQ(chunks.heads(), (std::vector<float>{1, 1, 1, 1, 1, 1, 2, 2}));
}

}  // namespace
}  // namespace gradsync::device
