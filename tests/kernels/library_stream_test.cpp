// Streams for collectives in the C interface, on the emulation: marks, what waits for them, and memory that is given
// back while one of them is busy.

#include "device/nccl/host_stream_queue.hpp"
#include "exported_memory.hpp"
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

/// Memory that has a descriptor until it is freed.
class GivenBack : public LibraryStream {
 protected:
  static constexpr std::size_t kBytes = std::size_t{2} << 20;

  void give_back() {
    ASSERT_EQ(gradsync_gpu_allocate(kBytes, &memory_), 0) << gradsync_gpu_error();
    ASSERT_EQ(gradsync_gpu_free(memory_), 0) << gradsync_gpu_error();
  }

  [[nodiscard]] bool freed() const { return simt::descriptor_of(memory_) < 0; }

  void wait_until_passed() {
    while (passed() < marks_) {
      std::this_thread::sleep_for(1ms);
    }
  }

 private:
  void* memory_ = nullptr;
};

TEST_F(GivenBack, is_freed_at_once_where_nothing_runs) {
  give_back();
  EXPECT_TRUE(freed());
}

TEST_F(GivenBack, while_a_stream_is_busy_is_freed_by_the_look_that_finds_none_busy) {
  enqueue_what_stands_still();
  mark();
  give_back();
  EXPECT_EQ(passed(), 0U);
  EXPECT_FALSE(freed());
  go_on();
  wait_until_passed();
  EXPECT_TRUE(freed());
}

/// NCCL launches on threads of its own: what was asked for comes to the stream later.
TEST_F(GivenBack, between_a_launch_and_its_mark_is_kept_although_the_stream_is_empty) {
  ASSERT_NE(gradsync_stream_handle(stream_.get()), nullptr);
  give_back();
  EXPECT_EQ(passed(), 0U);
  EXPECT_FALSE(freed());
  mark();
  wait_until_passed();
  EXPECT_TRUE(freed());
}

TEST_F(GivenBack, while_another_stream_is_busy_is_freed_when_that_is_destroyed) {
  std::unique_ptr<gradsync_stream, DestroyStream> other(gradsync_stream_create());
  ASSERT_NE(gradsync_stream_handle(other.get()), nullptr);
  give_back();
  mark();
  wait_until_passed();
  EXPECT_FALSE(freed());
  other.reset();
  EXPECT_TRUE(freed());
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
