#pragma once
// norm → coefficient, on host and device: the doubles of `plan::apply_clip_rule`, bit for bit, without its words.
//
// strict: norm ≤ max_norm leaves the gradients alone; else max_norm / norm, rounded down so that the clipped norm does
// not exceed max_norm. torch: min(1, max_norm / (norm + 1e-6)) in the norm's dtype, as torch.nn.utils.clip_grad_norm_.
// A non-finite norm: strict does not clip by it, torch multiplies by NaN or 0 as torch does.

#include "kernels/host_device.hpp"

namespace gradsync::kernels {

enum class ClipMode : std::uint32_t { MeasureOnly, Strict, Torch };

/// Precision in which a norm is reported and a coefficient is held.
enum class NormType : std::uint32_t { Float32, Float64 };

struct ClipRule {
  double max_norm;  ///< ≥ 0; not read in MeasureOnly
  ClipMode mode;
  NormType type;
};

struct ClipOutcome {
  double norm;         ///< in unscaled units, rounded to the rule's type
  double threshold;    ///< infinite when only measured
  double coefficient;  ///< for clipping, without 1/scale
  double multiplier;   ///< coefficient / scale: what the scale pass applies
  std::uint64_t nonfinite;
  std::uint32_t multiply;   ///< 0: the gradients stay bit-unchanged
  std::uint32_t clipped;    ///< norm > threshold
  std::uint32_t found_inf;  ///< a value was infinite or NaN (nothing else counts)
  std::uint32_t reserved;
};

/// Whether the scale pass has anything to do.
GRADSYNC_HD inline bool changes(const ClipOutcome& outcome) { return outcome.multiply != 0 && outcome.multiplier != 1; }

namespace detail {

inline constexpr double kFloatMax = 3.4028234663852886e38;
inline constexpr double kDoubleMax = 1.7976931348623157e308;

GRADSYNC_HD inline float nearest_float(double value) {
  if (is_nan(value)) {
    return bits_as<float>(kFloatNan);
  }
  if (is_finite(value)) {
    value = value > kFloatMax ? kFloatMax : value < -kFloatMax ? -kFloatMax : value;
  }
  return static_cast<float>(value);
}

GRADSYNC_HD inline double toward_zero(double value, NormType type) {
  return type == NormType::Float64
             ? bits_as<double>(bits_as<std::uint64_t>(value) - 1)
             : static_cast<double>(bits_as<float>(bits_as<std::uint32_t>(static_cast<float>(value)) - 1));
}

/// The largest value of the type that is not above `value`, which is ≥ 0.
GRADSYNC_HD inline double round_down(double value, NormType type) {
  if (type == NormType::Float64) {
    return value;
  }
  const double nearest = nearest_float(value);
  return nearest > value ? toward_zero(nearest, type) : nearest;
}

/// Each operation rounded to T; `scalar / tensor` of torch is a reciprocal and a product; its clamp lets NaN through.
template <typename T>
GRADSYNC_HD inline double torch_coefficient(T norm, T max_norm) {
  const T shifted = norm + static_cast<T>(1e-6);
  const T reciprocal = T{1} / shifted;
  const T coefficient = reciprocal * max_norm;
  return coefficient > T{1} ? 1.0 : static_cast<double>(coefficient);
}

/// The largest factor of the type, not above `factor`, that takes `norm` to no more than max_norm.
GRADSYNC_HD inline double shrink_to_fit(double factor, double norm, double max_norm, NormType type) {
  factor = round_down(factor, type);
  while (factor > 0 && factor * norm > max_norm) {
    factor = toward_zero(factor, type);
  }
  return factor;
}

GRADSYNC_HD inline double smaller(double a, double b) { return b < a ? b : a; }

}  // namespace detail

/// `raw_norm` is the norm of the stored values, `scale` (> 0) the loss scale that they carry.
GRADSYNC_HD inline ClipOutcome clip(const ClipRule& rule, double raw_norm, double scale, std::uint64_t nonfinite) {
  // A scale below 1 can lift a norm out of the doubles. It is then the largest of them, and clips by what is exact: the
  // norm before the division.
  const bool beyond = is_finite(raw_norm) && !is_finite(raw_norm / scale);
  const double measured = beyond ? detail::kDoubleMax : raw_norm / scale;
  const bool wide = rule.type == NormType::Float64 || (is_finite(measured) && measured > detail::kFloatMax);
  const double norm = wide ? measured : static_cast<double>(detail::nearest_float(measured));
  const bool torch = rule.mode == ClipMode::Torch;

  ClipOutcome outcome{};
  outcome.norm = norm;
  outcome.threshold = rule.mode == ClipMode::MeasureOnly ? bits_as<double>(kDoubleInfinity) : rule.max_norm;
  outcome.coefficient = 1;
  outcome.nonfinite = nonfinite;
  outcome.found_inf = nonfinite != 0 ? 1 : 0;
  const bool clipped = norm > outcome.threshold;
  outcome.clipped = clipped ? 1 : 0;
  if (torch) {
    outcome.coefficient =
        rule.type == NormType::Float64
            ? detail::torch_coefficient<double>(norm, rule.max_norm)
            : detail::torch_coefficient<float>(detail::nearest_float(norm), detail::nearest_float(rule.max_norm));
  } else if (clipped && is_finite(norm)) {
    const double factor = detail::smaller(rule.max_norm / norm, rule.max_norm / measured);
    outcome.coefficient = detail::shrink_to_fit(factor, measured, rule.max_norm, rule.type);
  }

  const double multiplier = outcome.coefficient / scale;
  if (clipped && is_finite(raw_norm) && (!torch || beyond)) {
    // What is multiplied is the stored values, so they are what must come to no more than max_norm.
    const double largest = rule.max_norm / raw_norm;
    const double factor = beyond ? largest : detail::smaller(multiplier, largest);
    outcome.multiplier = detail::shrink_to_fit(factor, raw_norm, rule.max_norm, rule.type);
    outcome.coefficient = beyond ? outcome.multiplier * scale : outcome.coefficient;
  } else {
    outcome.multiplier =
        rule.type == NormType::Float64 ? multiplier : static_cast<double>(detail::nearest_float(multiplier));
  }
  outcome.multiply = torch || outcome.multiplier != 1 ? 1 : 0;
  return outcome;
}

}  // namespace gradsync::kernels
