#pragma once
// The norm above which an adaptive policy clips, as a value. It is known before the norm, so a lane can apply it
// without asking back.

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

  /// Returns `begin`, except for ZScore and a norm whose score exceeds z: then mean + z · deviation · z / score, with
  /// score = (norm − mean) / (deviation + 1e-6), operation by operation as in the authors' code (zclip.py,
  /// "adaptive_scaling").
  [[nodiscard]] double threshold(double norm) const;

  friend bool operator==(const ClipBound&, const ClipBound&) = default;
};

/// ZClip's ε. It is used in the score only.
inline constexpr double kScoreEpsilon = 1e-6;

}  // namespace gradsync::plan
