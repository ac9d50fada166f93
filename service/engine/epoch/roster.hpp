#pragma once
// The seats of a job on this node, one per rank that is here, with what the epoch machine has to know of each. Pure;
// one owner, one thread.
//
// Which ranks of a job over several nodes are here is known when as many have come as were promised. Until then an
// absent one has no number.

#include "base/clock.hpp"
#include "base/error.hpp"
#include "engine/epoch/by_rank.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gradsync::engine {

/// A timeout of a client may be any number: the longest is a year.
[[nodiscard]] TimePoint deadline_after(TimePoint now, Milliseconds timeout);

/// The declaration of a rank, as far as epochs need it. It is replaced as a whole.
struct SeatDeclaration {
  std::uint64_t ticket = 0;       ///< the check that is made of it; 0: none
  bool valid = false;             ///< it was checked
  bool fresh = false;             ///< it was declared since the last commit
  bool committed = false;         ///< it is part of the last commit: its rank may send step messages
  bool compares_weights = false;  ///< weights are found equal before the first step
};

/// A declare call that waits for its answer.
struct DeclareCall {
  TimePoint since;
  TimePoint deadline;
};

struct Seat {
  /// A process that died before its epoch began.
  struct Loss {
    TimePoint at;
    Error error;
  };

  bool taken = false;
  std::int64_t pid = 0;
  bool paused = false;
  bool resumed = false;                      ///< it came back since it declared, and may not have heard the answer
  std::uint64_t joined_epoch = 0;            ///< records of earlier epochs belong to another process
  std::optional<TimePoint> reconnect_until;  ///< set while the connection is gone but the process lives
  std::optional<Loss> loss;                  ///< no process has taken the seat since
  std::optional<Error> refusal;  ///< why its own declaration was refused, for the others, until it declares again
  std::optional<Error> unheard;  ///< why the epoch does not form, which its next step call that waits is told
  SeatDeclaration declaration;
  std::optional<DeclareCall> call;
};

/// Visits are of the seats about which there is something to know; the others are as a new one.
class Roster : public ByRank<Seat> {
 public:
  /// `size`: ranks of the job that are on this node.
  Roster(std::int64_t world_size, std::int64_t size) : world_size_(world_size), size_(size) {}

  [[nodiscard]] std::int64_t world_size() const { return world_size_; }

  [[nodiscard]] std::int64_t size() const { return size_; }

  /// All ranks of the job are on this node.
  [[nodiscard]] bool alone() const { return size_ == world_size_; }

  /// How many ranks of this node have no process.
  [[nodiscard]] std::int64_t absent() const;
  /// The lowest of them, at most `most`; none where their numbers are not known.
  [[nodiscard]] std::vector<std::int64_t> first_absent(std::size_t most) const;
  /// "rank 1", "2 of 4 ranks of this node": those that have no process.
  [[nodiscard]] std::string absent_in_words() const;
  [[nodiscard]] bool empty() const;
  [[nodiscard]] bool any_committed() const;
  [[nodiscard]] bool any_calls() const;
  [[nodiscard]] bool compares_weights() const;
  /// Since when the declare call that came first waits.
  [[nodiscard]] std::optional<TimePoint> first_call() const;

 private:
  std::int64_t world_size_;
  std::int64_t size_;
};

}  // namespace gradsync::engine
