#pragma once
// The results of a step on a lane: norms, outcomes, and what is wrong with which tensor.

#include "device/math/norm_sum.hpp"
#include "plan/clip/clip_rule.hpp"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace gradsync::device {

inline constexpr std::size_t kMaxFindings = 64;

/// Non-finite values of one tensor: in the stored result, and in what each rank contributed before the reduction. On
/// data path `stats`: of the whole tensor, and on each rank.
struct NonfiniteFinding {
  std::uint32_t tensor = 0;
  std::uint64_t count = 0;
  std::vector<std::pair<std::int64_t, std::uint64_t>> inputs;  ///< (rank, count), ranks with a count > 0 only
};

/// Bits that differ where they must be equal. `ranks` are those that differ from the counted sum's result; on data path
/// `stats` from the lowest rank that holds the same part and has a gradient for it.
struct DivergenceFinding {
  std::uint32_t tensor = 0;
  std::vector<std::int64_t> ranks;
  /// The ranks with copies that more than half of those compared are equal to, and the others. A part of which no
  /// value has a majority, as with two copies, has suspects alone: all its ranks.
  std::vector<std::int64_t> majority = {};
  std::vector<std::int64_t> suspects = {};
};

/// Ranks that have no gradient for their part of a tensor, while others have one. On data path `stats` the rows say so;
/// else these are the destinations of a sum to which no rank contributed.
struct MissingFinding {
  std::uint32_t tensor = 0;
  std::vector<std::int64_t> ranks;
};

/// The numbers that the norm needs of one node: a sum for everything, one per clip group where there are several, one
/// per layer. Only boxes that the node owns are counted; values that are not finite are so in all that it holds.
struct NodeCells {
  TensorSum whole;
  std::vector<TensorSum> groups;
  std::vector<TensorSum> layers;
  std::uint64_t counted_elements = 0;
};

struct StepMath {
  double norm = 0;  ///< over all clip groups, unscaled units
  std::vector<plan::ClipOutcome> groups;
  /// By clip group, as `plan::apply_clip_rule` takes it: the norm of the stored values, neither divided by the scale
  /// nor rounded. With the step's scale a later call gets the coefficient that this step would have applied, to the
  /// bit.
  std::vector<double> raw_group_norms;
  std::vector<double> layer_norms;
  std::vector<NonfiniteFinding> nonfinite;    ///< by tensor index; at most kMaxFindings
  std::vector<DivergenceFinding> divergence;  ///< by tensor index; at most kMaxFindings
  std::vector<MissingFinding> missing;        ///< by tensor index; at most kMaxFindings
  std::vector<std::uint32_t> absent;          ///< tensors unused on every rank, ascending
  std::uint64_t nonfinite_total = 0;
  std::uint64_t counted_elements = 0;
  double norm_s = 0;  ///< time to combine
  double clip_s = 0;  ///< time of the scale pass
};

}  // namespace gradsync::device
