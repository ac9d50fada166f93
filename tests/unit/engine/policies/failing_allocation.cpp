#include "unit/engine/policies/failing_allocation.hpp"

#include <cstdlib>
#include <new>

namespace {

thread_local int left = -1;  ///< calls that work before one fails; −1: none fails

}  // namespace

// In a file of their own, so that no caller inlines one half of a pair.
// The standard algorithms' temporary buffers come from the one that does not throw.
void* operator new(std::size_t size, const std::nothrow_t& /*tag*/) noexcept {
  if (left >= 0 && left-- == 0) {
    return nullptr;
  }
  return std::malloc(size != 0 ? size : 1);
}

void* operator new(std::size_t size) {
  if (void* memory = operator new(size, std::nothrow)) {
    return memory;
  }
  throw std::bad_alloc();
}

void operator delete(void* memory) noexcept { std::free(memory); }

void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace gradsync::engine {

FailingAllocation::FailingAllocation(int number) { left = number; }

FailingAllocation::~FailingAllocation() { left = -1; }

}  // namespace gradsync::engine
