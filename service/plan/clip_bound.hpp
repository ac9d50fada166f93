#pragma once
// Where an adaptive policy begins to clip, as a value: known before the norm, so that a lane need not ask back.

#include <cstdint>
#include <limits>

namespace gradsync::plan {

struct ClipBound {
  enum class Kind : std::uint8_t { None, Percentile, ZScore };

  Kind kind = Kind::None;
  double begin = std::numeric_limits<double>::infinity();  ///< norms above it are clipped
  double mean = 0;                                         ///< ZScore
  double deviation = 0;                                    ///< ZScore
  double z = 0;                                            ///< ZScore

  /// `begin`, but for ZScore and a norm whose score exceeds z: mean + z · deviation · z / score, with score = (norm −
  /// mean) / (deviation + 1e-6), operation by operation as the authors' code has it (zclip.py, "adaptive_scaling").
  [[nodiscard]] double threshold(double norm) const;

  friend bool operator==(const ClipBound&, const ClipBound&) = default;
};

/// ZClip's ε, in the score and nowhere else.
inline constexpr double kScoreEpsilon = 1e-6;

}  // namespace gradsync::plan
