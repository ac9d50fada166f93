#pragma once
// The faults that the fake NCCL is told to have: entries with ';' between them, each a fault and what it is about, like
// "stops rank=1 operation=4; error rank=0 operation=5 polls=3 code=6". From $GRADSYNC_FAKE_NCCL, or of a test.
//
//   never_joins     the rank never comes to the communicator, so that no member has it
//   fails_to_join   its initialisation fails at once, with `code`
//   never_comes     it never comes to this operation; its own stream stands still, too
//   stops           it takes part in half of this operation, and stands still then
//   error           this operation stands still in the middle; the `polls`-th question after that says the error,
//                   `code`, and then the operation ends, with an event that says success; 0: it ends at once
//   abort_hangs     its abort never returns
//   slow_launch     the launch is in progress until it was asked for `polls` times; only then it is on the stream
//
// An entry counts for every rank, operation or communicator that it does not name; `of` is a part of its name.

#include <optional>
#include <string>
#include <vector>

namespace gradsync::fakes {

struct FakeFault {
  std::string kind;
  std::optional<int> rank;
  std::optional<long> operation;  ///< from 0, of the communicator
  std::string of;
  int polls = 1;
  int code = 6;  ///< ncclRemoteError
};

/// Throws std::invalid_argument with the word that it does not know.
[[nodiscard]] std::vector<FakeFault> read_script(const std::string& text);

}  // namespace gradsync::fakes
