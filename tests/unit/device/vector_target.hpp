#pragma once
// For whole test programs: GRADSYNC_TEST_VECTOR_TARGET names the vector target that they run on, which is otherwise the
// best of the CPU. CTest runs those that compare bits once for each target (`gradsync_each_vector_target`).

#include "device/math/chunk_math.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace gradsync::device {

/// Empty: the best.
inline std::string wanted_vector_target() {
  const char* name = std::getenv("GRADSYNC_TEST_VECTOR_TARGET");  // NOLINT(concurrency-mt-unsafe): before any thread
  return name == nullptr ? "" : name;
}

/// Ends the program with 77, which CTest takes for a skipped test, where this CPU or build does not have it.
inline void use_wanted_vector_target() {
  const std::string name = wanted_vector_target();
  if (const auto targets = vector_targets(); !name.empty() && !std::ranges::count(targets, name)) {
    std::printf("skipped: this CPU or build has no vector target %s\n", name.c_str());
    std::exit(77);  // NOLINT(concurrency-mt-unsafe): before any thread
  }
  use_vector_target(name);
}

}  // namespace gradsync::device
