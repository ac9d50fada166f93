#include "base/assert.hpp"

#include <cstdio>
#include <cstdlib>

namespace gradsync {

void assertion_failed(const char* expression, const char* why, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: assertion '%s' failed: %s\n", file, line, expression, why);
  std::fflush(stderr);
  std::abort();
}

}  // namespace gradsync
