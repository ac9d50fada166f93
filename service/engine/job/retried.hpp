#pragma once

#include <cerrno>

namespace gradsync::engine {

/// The result of a system call, made again for as long as signals interrupt it.
template <typename Call>
auto retried(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) {
    result = call();
  }
  return result;
}

}  // namespace gradsync::engine
