#pragma once
// The bytes of a policy file. Little-endian; in pages of 4096 bytes, so that a store touches as few as may be:
//
//   header              one page: "gradsync states\n" (16 bytes), u32 version 1, u32 uid, u64 bytes of a slot,
//                       u32 bytes of the job's name, u32 0, the name, u64 XXH3 of all before it, zeros
//   two slots           each of whole pages: u64 word, u64 sequence, u64 bytes of the state, the state,
//                       u64 XXH3 of all before it, u64 sequence, u64 word, and whatever was there before
//
// A slot is written in one go from its first byte to its last, and no two stores of a file have the same sequence. So
// unequal stamps (word and sequence) are a store that was cut off, and a wrong checksum between equal ones is damage.
// A file of no bytes remembers nothing.
//
// A state that other nodes have yet to vote on has the complement of its word at the end, and is pending; when its step
// is done the word is written over it. A cut between two of these 8 bytes leaves it pending.

#include "base/error.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace gradsync::engine {

inline constexpr std::size_t kPolicyFilePage = 4096;

/// A slot as it lies in the file.
struct StateSlot {
  std::uint64_t word = 0;  ///< 0: nothing whole is in it
  std::uint64_t sequence = 0;
  bool pending = false;  ///< whether its step is done is not known
  std::string image;

  [[nodiscard]] std::string_view state() const;

  /// Replaces `image`: `state` under `word` and `sequence`, `pending` or not.
  void fill(std::string_view state);

  /// It is not pending any more: the last `kDoneMarkBytes` of `image` say so.
  void settle();
};

struct PolicyFileContents {
  std::size_t slot_bytes = 0;
  std::array<StateSlot, 2> slots;
};

/// Bytes at the end of a slot's image that change when its step is done.
inline constexpr std::size_t kDoneMarkBytes = sizeof(std::uint64_t);

/// Bytes of a slot around its state.
inline constexpr std::size_t kSlotFrameBytes = 48;

/// Bytes of a slot that has room for such a state, in whole pages.
[[nodiscard]] constexpr std::size_t slot_bytes_for(std::size_t state_bytes) {
  return (state_bytes + kSlotFrameBytes + kPolicyFilePage - 1) / kPolicyFilePage * kPolicyFilePage;
}

[[nodiscard]] constexpr std::size_t slot_offset(std::size_t slot, std::size_t slot_bytes) {
  return kPolicyFilePage + slot * slot_bytes;
}

/// One page; empty for a name that has no room in it.
[[nodiscard]] std::string policy_file_header(std::uint32_t uid, std::string_view job, std::size_t slot_bytes);

/// A slot that was never stored, or cut off, is empty. Errors: InternalError for bytes that are not a file of this job,
/// or that were damaged after they were stored.
[[nodiscard]] Result<PolicyFileContents> read_policy_file(
    std::string_view bytes, std::uint32_t uid, std::string_view job
);

}  // namespace gradsync::engine
