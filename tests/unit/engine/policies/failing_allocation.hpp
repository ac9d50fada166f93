#pragma once

// Makes a later call of operator new on this thread throw std::bad_alloc.

namespace gradsync::engine {

/// While it lives the call number `number` from now throws, counted from 0; those after it work.
class FailingAllocation {
 public:
  explicit FailingAllocation(int number);
  ~FailingAllocation();
  FailingAllocation(const FailingAllocation&) = delete;
  FailingAllocation& operator=(const FailingAllocation&) = delete;
};

}  // namespace gradsync::engine
