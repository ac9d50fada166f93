#pragma once
// The states of all policies of a job as bytes: for checkpoints, files and digests. Little-endian, equal on all
// machines:
//
//   "gradsync groups\n"  16 bytes
//   version             u32, 1
//   groups              u32
//   of each group       u32 bytes of its name, u32 policies, the name
//     of each policy    u64 bytes, and what policy::Policy::save wrote, which ends with a checksum
//   checksum            u64, XXH3 of all before it, with each state's checksum in the place of the state
//
// Every norm is hashed once that way, by its own state: hashing is most of what a step costs here.

#include "base/error.hpp"

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace gradsync::engine {

class GroupStateWriter {
 public:
  /// Replaces `bytes`, which outlives it.
  GroupStateWriter(std::string& bytes, std::size_t groups);

  /// `policies` calls of `add` follow.
  void begin_group(std::string_view name, std::size_t policies);

  void add(std::string_view state);

  /// Returns the checksum as 16 hex digits.
  [[nodiscard]] std::string finish();

 private:
  std::string& bytes_;
  std::string hashed_;
  std::size_t unhashed_ = 0;  ///< where the bytes begin that `hashed_` does not have yet
};

struct SavedGroup {
  std::string name;
  std::vector<std::string_view> states;  ///< parts of the bytes that were read; they were not checked
};

/// Errors: InvalidParams with path `state` for anything that the writer did not write.
[[nodiscard]] Result<std::vector<SavedGroup>> read_group_states(std::string_view bytes);

}  // namespace gradsync::engine
