#pragma once

// A broken invariant is our own defect: the process says where and aborts. Never used for input from outside.

namespace gradsync {
[[noreturn]] void assertion_failed(const char* expression, const char* why, const char* file, int line);
}

#define GRADSYNC_ASSERT(condition, why)                                  \
  do {                                                                   \
    if (!(condition)) {                                                  \
      ::gradsync::assertion_failed(#condition, why, __FILE__, __LINE__); \
    }                                                                    \
  } while (false)
