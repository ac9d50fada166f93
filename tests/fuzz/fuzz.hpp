#pragma once
// What every fuzzer needs: an oracle that ends the process, and the input as text.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace gradsync::fuzz {

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return size == 0 ? std::string_view{} : std::string_view(reinterpret_cast<const char*>(data), size);
}

/// The next piece of `rest` up to `part`, which is dropped.
inline std::string_view next_piece(std::string_view& rest, char part) {
  const std::size_t end = rest.find(part);
  const std::string_view piece = rest.substr(0, end);
  rest = end == std::string_view::npos ? std::string_view{} : rest.substr(end + 1);
  return piece;
}

}  // namespace gradsync::fuzz

/// A macro for the sake of the line: libFuzzer prints the stack, this says what was not so.
#define REQUIRE(condition)                                                                            \
  do {                                                                                                \
    if (!(condition)) {                                                                               \
      std::fprintf(stderr, "fuzz: %s:%d: not so: %s\n", __FILE__, __LINE__, #condition); /* NOLINT */ \
      std::abort();                                                                                   \
    }                                                                                                 \
  } while (false)
