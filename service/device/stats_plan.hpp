#pragma once
// A plan of data path `stats` on the lane: the gradients stay with the trainers, each rank's buffer is a table of what
// they found. Only what the arithmetic needs; docs/adr/0008 has the rules.

#include <cstdint>
#include <vector>

namespace gradsync::device {

/// One row of a rank's table, written by the trainer's process: trusted for nothing until checked.
struct StatsRow {
  std::uint64_t stamp = 0;  ///< attempt + 1; 0: no gradient
  double power_sum = 0;     ///< Σ (|g| / scale)^p over finite values: power_sum + power_sum_low
  double power_sum_low = 0;
  double scale = 1;
  double maximum = 0;  ///< of the finite |g|
  std::uint64_t nonfinite = 0;
  std::uint64_t nan = 0;
  std::uint64_t fingerprint = 0;  ///< 0: not taken
};

static_assert(sizeof(StatsRow) == 64, "a row is one cache line; the client writes it by offset");

struct StatsTensor {
  std::uint32_t clip_group = 0;
  std::int32_t layer = -1;  ///< −1: none
  std::int32_t sum = -1;    ///< the scalar sum it goes into first; −1: the result
  bool counted = true;      ///< false: a tied copy, clipped but not in the norm
  std::uint64_t numel = 0;  ///< logical elements
};

/// What one row of a rank's table is.
struct StatsHolding {
  std::uint32_t tensor = 0;
  std::uint32_t box = 0;       ///< rows of equal (tensor, box) must be equal
  std::uint64_t elements = 0;  ///< held here
  bool counts = true;          ///< false: a copy between `only` coordinates; the lowest counts
};

struct StatsSum {
  std::uint32_t collective = 0;
  std::int32_t next = -1;
};

struct StatsPlan {
  std::int64_t world_size = 1;
  double norm_type = 2.0;
  std::uint32_t clip_groups = 1;
  std::uint32_t layers = 0;
  std::vector<StatsTensor> tensors;
  std::vector<std::vector<StatsHolding>> rows;  ///< by rank
  std::vector<StatsSum> sums;
  std::vector<std::vector<std::vector<std::int64_t>>> collectives;  ///< in run order: its groups of ranks
  std::vector<std::uint64_t> rank_buffers;                          ///< one mapped table per rank
};

}  // namespace gradsync::device
