#pragma once
// An allocator for what comes and goes with every call: memory of a pool that all such things keep alive together. The
// pool has no lock. Thread: io only.

#include <cstddef>
#include <memory>
#include <memory_resource>
#include <utility>

namespace gradsync::rpc {

template <typename T>
class Pooled {
 public:
  using value_type = T;

  explicit Pooled(std::shared_ptr<std::pmr::memory_resource> pool) : pool_(std::move(pool)) {}

  template <typename U>
  Pooled(const Pooled<U>& other) : pool_(other.pool()) {}  // NOLINT(google-explicit-constructor): allocators convert

  [[nodiscard]] T* allocate(std::size_t count) {
    return static_cast<T*>(pool_->allocate(count * sizeof(T), alignof(T)));
  }

  void deallocate(T* memory, std::size_t count) { pool_->deallocate(memory, count * sizeof(T), alignof(T)); }

  [[nodiscard]] const std::shared_ptr<std::pmr::memory_resource>& pool() const { return pool_; }

  template <typename U>
  friend bool operator==(const Pooled& left, const Pooled<U>& right) {
    return left.pool() == right.pool();
  }

 private:
  std::shared_ptr<std::pmr::memory_resource> pool_;
};

}  // namespace gradsync::rpc
