// Streams for collectives in the C interface, on the emulation: marks, what waits for them, and memory that is given
// back while one of them is busy.

#include "device/nccl/host_stream_queue.hpp"
#include "kernels/library/gradsync_gpu.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <thread>

namespace gradsync::kernels {
namespace {

using namespace std::chrono_literals;

struct DestroyStream {
  void operator()(gradsync_stream* stream) const { gradsync_stream_destroy(stream); }
};

/// A stream whose first work stands still until it is told to go on, as a collective whose peer is gone.
class LibraryStream : public testing::Test {
 protected:
  ~LibraryStream() override {
    go_on();
    while (passed() < marks_) {
      std::this_thread::sleep_for(1ms);
    }
  }

  void enqueue_what_stands_still() {
    auto* const queue = static_cast<device::HostStreamQueue*>(gradsync_stream_handle(stream_.get()));
    queue->enqueue(
        [](void* goes) {
          while (!static_cast<std::atomic<bool>*>(goes)->load()) {
            std::this_thread::sleep_for(1ms);
          }
        },
        &goes_
    );
  }

  void go_on() { goes_ = true; }

  void mark() {
    ASSERT_EQ(gradsync_stream_mark(stream_.get()), 0) << gradsync_gpu_error();
    ++marks_;
  }

  std::uint64_t passed() {
    std::uint64_t marks = 0;
    EXPECT_EQ(gradsync_stream_passed(stream_.get(), &marks), 0) << gradsync_gpu_error();
    return marks;
  }

  std::unique_ptr<gradsync_stream, DestroyStream> stream_{gradsync_stream_create()};
  std::atomic<bool> goes_ = false;
  std::uint64_t marks_ = 0;
};

TEST_F(LibraryStream, says_how_many_marks_it_has_passed) {
  EXPECT_EQ(passed(), 0U);
  enqueue_what_stands_still();
  mark();
  mark();
  std::this_thread::sleep_for(5ms);
  EXPECT_EQ(passed(), 0U);
  go_on();
  while (passed() < 2) {
    std::this_thread::sleep_for(1ms);
  }
  mark();
  while (passed() < 3) {
    std::this_thread::sleep_for(1ms);
  }
}

TEST_F(LibraryStream, is_not_waited_for_by_passes_and_by_memory_that_is_given_back) {
  enqueue_what_stands_still();
  mark();
  auto work = std::async(std::launch::async, [] {
    void* memory = nullptr;
    std::uint64_t word = 7;
    bool good = gradsync_gpu_allocate(256, &memory) == 0;
    good = good && gradsync_gpu_send(memory, &word, sizeof(word)) == 0;
    word = 0;
    good = good && gradsync_gpu_read(&word, memory, sizeof(word)) == 0 && word == 7;
    good = good && gradsync_gpu_wait() == 0 && gradsync_gpu_free(memory) == 0;
    return good ? std::string() : std::string(gradsync_gpu_error());
  });
  const bool waited = work.wait_for(5s) != std::future_status::ready;
  EXPECT_FALSE(waited) << "it waits for the stream";
  go_on();
  EXPECT_EQ(work.get(), "");
}

}  // namespace
}  // namespace gradsync::kernels
