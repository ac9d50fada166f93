#include "app/post_memory.hpp"

#include <boost/asio/bind_allocator.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

namespace gradsync::app {
namespace {

TEST(PostMemory, gives_the_same_blocks_again_and_the_heap_when_they_are_out) {
  PostMemory memory;
  std::set<void*> first;
  for (std::size_t i = 0; i < PostMemory::kBlocks; ++i) {
    EXPECT_TRUE(first.insert(memory.take(PostMemory::kBlockBytes)).second);
  }
  void* more = memory.take(8);
  void* large = memory.take(PostMemory::kBlockBytes + 1);
  EXPECT_FALSE(first.contains(more));
  EXPECT_FALSE(first.contains(large));
  memory.give_back(more);
  memory.give_back(large);
  for (void* block : first) {
    memory.give_back(block);
  }
  void* again = memory.take(1);
  EXPECT_TRUE(first.contains(again));
  memory.give_back(again);
}

TEST(PostMemory, carries_values_from_other_threads_whole) {
  constexpr std::uint64_t kThreads = 4;
  constexpr std::uint64_t kPosts = 2'000;
  PostMemory memory;
  boost::asio::io_context io{1};
  std::uint64_t sum = 0;
  std::uint64_t torn = 0;
  auto work = boost::asio::make_work_guard(io);
  std::vector<std::thread> threads;
  for (std::uint64_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&] {
      for (std::uint64_t i = 1; i <= kPosts; ++i) {
        std::array<std::uint64_t, 40> value;
        value.fill(i);
        boost::asio::post(io, boost::asio::bind_allocator(PostAllocator<std::byte>(memory), [&, value] {
                            sum += value.front();
                            torn += value.front() == value.back() ? 0 : 1;
                          }));
      }
    });
  }
  std::thread ender([&] {
    for (std::thread& thread : threads) {
      thread.join();
    }
    work.reset();
  });
  io.run();
  ender.join();
  EXPECT_EQ(sum, kThreads * kPosts * (kPosts + 1) / 2);
  EXPECT_EQ(torn, 0U);
}

TEST(PostMemory, outlives_what_was_posted_and_never_ran) {
  PostMemory memory;
  {
    boost::asio::io_context io;
    boost::asio::post(io, boost::asio::bind_allocator(PostAllocator<std::byte>(memory), [] {}));
  }
  std::set<void*> blocks;
  for (std::size_t i = 0; i < PostMemory::kBlocks; ++i) {
    blocks.insert(memory.take(1));
  }
  void* heap = memory.take(1);
  memory.give_back(heap);
  for (void* block : blocks) {
    memory.give_back(block);
  }
  EXPECT_EQ(blocks.size(), PostMemory::kBlocks);
}

}  // namespace
}  // namespace gradsync::app
