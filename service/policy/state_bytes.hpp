#pragma once
// The state of a policy as bytes: for checkpoints, files and digests. Little-endian, equal on all machines:
//
//   "gradsync policy\n"  16 bytes
//   version             u32, 1
//   bytes of settings   u32
//   numbers             u64
//   settings            the words of plan::words_of
//   numbers             float64 each
//   checksum            u64, XXH3 of all before it

#include "base/error.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gradsync::policy {

struct State {
  std::string settings;
  std::vector<double> numbers;
};

/// InvalidParams with path `state`: `what` was found, which nothing that saves a state writes.
[[nodiscard]] Error damaged_state(std::string what);

/// Replaces `bytes`.
void write_state(const State& state, std::string& bytes);

/// Errors: InvalidParams with path `state` for anything that `write_state` did not write, and for settings other than
/// `settings`: both are named.
[[nodiscard]] Result<State> read_state(std::string_view bytes, std::string_view settings);

/// The number of norms that a state has, or claims to have; 0 for bytes that are no state.
[[nodiscard]] std::uint64_t count_of(std::string_view bytes);

}  // namespace gradsync::policy
