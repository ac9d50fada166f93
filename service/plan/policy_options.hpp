#pragma once
// Options that say how the threshold of a clip group is found, and what happens where a norm is not to be trusted.
// These are values only; service/policy acts on them.

#include <cstdint>
#include <variant>

namespace gradsync::plan {

/// The threshold is max_norm.
struct FixedPolicy {
  friend bool operator==(const FixedPolicy&, const FixedPolicy&) = default;
};

/// Nothing is clipped, whatever max_norm says.
struct ObservePolicy {
  friend bool operator==(const ObservePolicy&, const ObservePolicy&) = default;
};

/// A percentile of the last norms, from the `warmup`-th on; max_norm is the ceiling, and all there is before.
struct PercentilePolicy {
  double percentile = 95;      ///< in (0, 100]
  std::int64_t window = 1000;  ///< norms
  std::int64_t warmup = 100;   ///< norms, at most `window`
  friend bool operator==(const PercentilePolicy&, const PercentilePolicy&) = default;
};

/// Auto gradient clipping as training scripts have it, to the letter: a percentile policy that remembers every norm,
/// also one that is not finite or of a step that was skipped, and whose threshold may be 0.
struct AutoPolicy : PercentilePolicy {
  friend bool operator==(const AutoPolicy&, const AutoPolicy&) = default;
};

/// ZClip (Kumar, Owen, Chowdhury, Güra: ZClip, Adaptive Spike Mitigation for LLM Pre-Training, 2025): a norm more than
/// z deviations above the mean is clipped, the further the more; max_norm is the ceiling.
struct ZScorePolicy {
  double z = 2.5;
  double alpha = 0.97;       ///< the weight of the past in the moving mean and variance; in (0, 1)
  std::int64_t warmup = 25;  ///< norms of which mean and variance begin
  friend bool operator==(const ZScorePolicy&, const ZScorePolicy&) = default;
};

using PolicyOptions = std::variant<FixedPolicy, ObservePolicy, PercentilePolicy, ZScorePolicy, AutoPolicy>;

/// The settings of a policy that goes by a percentile, auto gradient clipping included; nullptr: it does not.
[[nodiscard]] inline PercentilePolicy* percentile_in(PolicyOptions& policy) {
  auto* automatic = std::get_if<AutoPolicy>(&policy);
  return automatic != nullptr ? automatic : std::get_if<PercentilePolicy>(&policy);
}

[[nodiscard]] inline const PercentilePolicy* percentile_in(const PolicyOptions& policy) {
  const auto* automatic = std::get_if<AutoPolicy>(&policy);
  return automatic != nullptr ? automatic : std::get_if<PercentilePolicy>(&policy);
}

/// The effect on the step of a norm that is not finite. Zero: the gradients of the clip group become 0, and the
/// optimizer steps.
enum class NonfiniteAction : std::uint8_t { Propagate, Skip, Zero, Raise };

/// The effect on the step of a norm above `spike_factor` × the policy's own threshold.
enum class SpikeAction : std::uint8_t { Clip, Skip, Raise };

inline constexpr double kDefaultSpikeFactor = 3;
inline constexpr std::int64_t kMaxWindow = 100'000;

}  // namespace gradsync::plan
