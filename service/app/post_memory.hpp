#pragma once
// Memory of what one thread posts to another. Asio keeps a thread's memory for that thread alone, so that a post from
// outside the loop would allocate each time. Here are a few blocks; who finds none free goes to the heap.
//
// Thread: any. A block is a flag that is taken and given back; nobody waits. It has to outlive what is posted.

#include <array>
#include <atomic>
#include <cstddef>
#include <new>

namespace gradsync::app {

class PostMemory {
 public:
  static constexpr std::size_t kBlocks = 16;
  static constexpr std::size_t kBlockBytes = 768;

  PostMemory() = default;
  PostMemory(const PostMemory&) = delete;
  PostMemory& operator=(const PostMemory&) = delete;

  [[nodiscard]] void* take(std::size_t size_bytes) {
    if (size_bytes <= kBlockBytes) {
      for (Block& block : blocks_) {
        // Acquire: whoever had the block before is done with it.
        if (!block.taken.load(std::memory_order_relaxed) && !block.taken.exchange(true, std::memory_order_acquire)) {
          return block.bytes.data();
        }
      }
    }
    return ::operator new(size_bytes);
  }

  void give_back(void* memory) {
    for (Block& block : blocks_) {
      if (memory == block.bytes.data()) {
        block.taken.store(false, std::memory_order_release);
        return;
      }
    }
    ::operator delete(memory);
  }

 private:
  struct Block {
    alignas(std::max_align_t) std::array<std::byte, kBlockBytes> bytes;
    std::atomic<bool> taken = false;
  };

  std::array<Block, kBlocks> blocks_;
};

/// For `boost::asio::bind_allocator`.
template <typename T>
class PostAllocator {
 public:
  using value_type = T;

  explicit PostAllocator(PostMemory& memory) : memory_(&memory) {}

  template <typename U>
  PostAllocator(const PostAllocator<U>& other) : memory_(other.memory()) {}  // NOLINT(google-explicit-constructor)

  [[nodiscard]] T* allocate(std::size_t count) const {
    static_assert(alignof(T) <= alignof(std::max_align_t));
    return static_cast<T*>(memory_->take(count * sizeof(T)));
  }

  void deallocate(T* memory, std::size_t) const { memory_->give_back(memory); }

  [[nodiscard]] PostMemory* memory() const { return memory_; }

  template <typename U>
  friend bool operator==(const PostAllocator& left, const PostAllocator<U>& right) {
    return left.memory() == right.memory();
  }

 private:
  PostMemory* memory_;
};

}  // namespace gradsync::app
