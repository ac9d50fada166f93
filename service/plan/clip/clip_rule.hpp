#pragma once
// norm → coefficient, for one clip group. Pure. Known before the norm, so a lane can apply it without asking back.

#include "plan/clip/clip_bound.hpp"
#include "plan/declaration.hpp"

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>

namespace gradsync::plan {

struct ClipRule {
  std::optional<double> max_norm;  ///< empty: no limit but `bound`. Never negative or NaN
  ClipMode mode = ClipMode::Strict;
  ZeroRule zero_rule = ZeroRule::Refuse;  ///< for a declared max_norm; Refuse with max_norm 0 never reaches a lane
  DType norm_dtype = DType::Float32;
  ClipBound bound = {};  ///< the bound of an adaptive policy; the threshold is the smaller of it and max_norm
  NonfiniteAction nonfinite = NonfiniteAction::Propagate;
  SpikeAction spike = SpikeAction::Clip;
  double spike_above = std::numeric_limits<double>::infinity();  ///< norms above it are spikes
};

/// The effect of a clip group on the step. Zero: its gradients become 0, and the optimizer steps. Skip and Raise:
/// nothing is multiplied, in no group, and no optimizer steps.
enum class StepAction : std::uint8_t { Step, Zero, Skip, Raise };

/// More than any reason has: the longest is below 120.
inline constexpr std::size_t kReasonBytes = 128;

struct ClipOutcome {
  double norm = 0;         ///< unscaled units, rounded to the norm dtype
  double threshold = 0;    ///< +infinity when only measured
  double coefficient = 1;  ///< what gradients are multiplied by for clipping, without 1/scale
  double multiplier = 1;   ///< coefficient / scale: what the scale pass applies; a float32 unless norm_dtype is Float64
  bool multiply = false;   ///< false: nothing is multiplied; the bits stay as they are, but where `action` is Zero
  bool clipped = false;    ///< norm > threshold, whatever becomes of the step
  std::string reason;      ///< in words
  StepAction action = StepAction::Step;  ///< Zero: write zeros, NaN times 0 is NaN. Skip, Raise: the multiplier is 1
  bool spike = false;                    ///< norm > spike_above
  bool decides = false;                  ///< its norm is why the step is skipped or raised, in all groups
};

/// strict: norm ≤ max_norm and scale 1 → no multiplication; else max_norm / norm. torch: min(1, max_norm / (norm +
/// 1e-6)), computed in the norm dtype and always multiplied, as torch.nn.utils.clip_grad_norm_ does. A non-finite norm
/// propagates: strict leaves the gradients as they are apart from 1/scale, torch multiplies by NaN or 0 as torch does.
/// A strict coefficient is rounded down to the norm dtype, so that the clipped norm does not exceed max_norm. A finite
/// norm above the range of the norm dtype is no infinity: it is reported as a float64 and clipped as by formula strict,
/// and so is one above float64 (after a scale below 1), reported as the largest double. `raw_norm` is the norm of
/// the stored values, unrounded, `scale` the loss scale they carry: hand on what was measured, never a reported norm
/// times the scale, which is rounded and may overflow.
///
/// With a `bound` the threshold is a function of the reported norm; all else is as with that threshold declared. A
/// spike or a norm that is not finite is clipped or propagated as above, unless the rule has another action for it.
[[nodiscard]] ClipOutcome apply_clip_rule(const ClipRule& rule, double raw_norm, double scale);

/// The same, in place of what `outcome` was: the memory of its reason is used again.
void apply_clip_rule(const ClipRule& rule, double raw_norm, double scale, ClipOutcome& outcome);

/// The norm of such an outcome alone.
[[nodiscard]] double reported_norm(double raw_norm, double scale, DType norm_dtype);

/// The groups of one step, together: where one skips or raises, all do, nothing is multiplied, and the others name the
/// reason of the first that decided. Raise is stronger than Skip, a norm that is not finite than a spike.
void decide_together(std::span<ClipOutcome> outcomes);

}  // namespace gradsync::plan
