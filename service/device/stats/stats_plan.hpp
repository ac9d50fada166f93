#pragma once
// A plan of data path `stats` on the lane: the gradients stay with the trainers, each rank's buffer is a table of what
// they found. Only what the arithmetic needs; docs/adr/0008 has the rules.

#include <cstdint>
#include <utility>
#include <vector>

namespace gradsync::device {

/// One row of a rank's table, written by the trainer's process: trusted for nothing until checked.
struct StatsRow {
  std::uint64_t stamp = 0;  ///< epoch · 2^32 + attempt + 1; 0: no gradient, and the rest means nothing
  double power_sum = 0;     ///< Σ (|g| / scale)^p over finite values: power_sum + power_sum_low; p = inf: 0
  double power_sum_low = 0;
  double scale = 1;
  double maximum = 0;  ///< the largest finite |g|; -1: not taken, which an ordinary sum allows
  std::uint64_t nonfinite = 0;
  std::uint64_t nan = 0;
  std::uint64_t fingerprint = 0;  ///< 0: not taken
  friend bool operator==(const StatsRow&, const StatsRow&) = default;
};

static_assert(sizeof(StatsRow) == 64, "a row is one cache line; the client writes it by offset");

using StatsBox = std::pair<std::uint32_t, std::uint32_t>;  ///< tensor, and which part of it

/// A row, and what it is about.
struct HeldRow {
  std::uint32_t tensor = 0;
  std::uint32_t box = 0;
  std::int64_t rank = 0;
  StatsRow row;
};

/// Whether hashes of rows tell sums apart.
enum class HashSums : bool { Out, In };

/// A rank that holds a part of a tensor, and the row where it says what it found.
struct StatsHolder {
  std::uint32_t rank = 0;
  std::uint32_t row = 0;
  std::uint32_t box = 0;       ///< which part: holders of equal boxes hold copies
  std::uint64_t elements = 0;  ///< the elements of that part
};

struct StatsTensor {
  std::uint32_t clip_group = 0;
  std::int32_t layer = -1;           ///< −1: none
  bool counted = true;               ///< false: a tied copy, clipped but not in the norm
  std::vector<StatsHolder> holders;  ///< by box, then by rank
};

/// A tied copy, which must agree with the earlier tensor that is counted for it.
struct StatsTie {
  std::uint32_t copy = 0;
  std::uint32_t counted = 0;
  std::vector<std::int32_t> boxes;  ///< by box of the copy: the box of `counted` that must be equal; −1: none
};

struct StatsPlan {
  std::int64_t world_size = 1;
  double norm_type = 2.0;
  std::uint32_t clip_groups = 1;
  std::uint32_t layers = 0;
  std::vector<StatsTensor> tensors;  ///< in plan order
  std::vector<StatsTie> ties;
  std::vector<std::uint64_t> rank_buffers;  ///< one mapped table per rank; 0: the rank is on another node

  // The rest is for a plan of several nodes, as the lane of one of them loads it: holders are those that are here.
  std::vector<StatsBox> elsewhere;             ///< held here and counted on another node; ascending
  std::vector<std::vector<StatsBox>> classes;  ///< boxes that nodes compare, each class ascending; a tied copy is part
                                               ///< of the box that is counted for it
};

}  // namespace gradsync::device
