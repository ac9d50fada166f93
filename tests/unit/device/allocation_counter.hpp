#pragma once
// Counts calls of operator new on all threads of the test binary.

#include <functional>

namespace gradsync::device {

int allocations_during(const std::function<void()>& work);

}  // namespace gradsync::device
