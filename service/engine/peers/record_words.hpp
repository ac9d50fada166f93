#pragma once
// What the records of a job's nodes say of the attempt that some of them are in doubt about → its one verdict. Pure.
//
// Invariants that make it right: a node stores `voted` before it votes; the coordinator's node stores `done` before it
// tells any node that an attempt is done; every node stores `done` before it answers a rank; and what a node says of
// its record holds, because it takes no message of the epoch before any more once it has said it.

#include <cstdint>
#include <optional>
#include <span>

namespace gradsync::engine {

/// What one node says of its record when it joins. A word is that of `attempt_word`; 0: none.
struct RecordWords {
  /// The node voted for this attempt, some rank waits for it, and nothing says what it came to.
  std::uint64_t doubt = 0;
  std::uint64_t done = 0;  ///< the attempt that was done last
  bool known = false;      ///< some rank or this daemon has the record; false: all ranks are new, and the rest is 0
};

enum class Verdict : std::uint8_t {
  Done,
  Failed,
  Unknown,  ///< nobody can know: every rank that waits is told `step_in_doubt`
};

/// What came of the attempt that one of the nodes is in doubt about; nullopt: that is not known yet. `nodes`: those
/// that have joined, that of the coordinator first. `all`: these are all nodes of the job, and all of their ranks have
/// said what they know.
[[nodiscard]] constexpr std::optional<Verdict> verdict_of(
    std::uint64_t doubt, std::span<const RecordWords> nodes, bool all
) {
  for (const RecordWords& node : nodes) {
    if (node.done == doubt) {
      return Verdict::Done;
    }
  }
  // What the coordinator's node has not stored, no node has: it is the first to store `done`.
  if (nodes.front().known) {
    return Verdict::Failed;
  }
  return all ? std::optional(Verdict::Unknown) : std::nullopt;
}

}  // namespace gradsync::engine
