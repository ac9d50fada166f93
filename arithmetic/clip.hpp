#pragma once
// norm → coefficient, for one clip group, on host and device: the same bits on both.
//
// strict: norm ≤ max_norm leaves the gradients alone; else max_norm / norm, rounded down so that the clipped norm does
// not exceed max_norm. torch: min(1, max_norm / (norm + 1e-6)) in the norm's type, as torch.nn.utils.clip_grad_norm_.
// A norm that is not finite: strict does not clip by it, torch multiplies by NaN or 0 as torch does. A finite norm that
// the type cannot hold is clipped as strict clips it, in both: torch, to which it is infinite, has no number here.

#include "arithmetic/host_device.hpp"

namespace gradsync::arithmetic {

enum class ClipMode : std::uint32_t { MeasureOnly, Strict, Torch };

/// Precision in which a norm is reported and a coefficient is held.
enum class NormType : std::uint32_t { Float32, Float64 };

struct ClipLimit {
  double max_norm;  ///< ≥ 0; not read in MeasureOnly
  ClipMode mode;
  NormType type;
};

struct Clipping {
  double norm;             ///< in unscaled units, rounded to the limit's type
  double threshold;        ///< infinite when only measured
  double coefficient;      ///< for clipping, without 1/scale
  double multiplier;       ///< coefficient / scale: what gradients are multiplied by
  std::uint32_t multiply;  ///< 0: the gradients stay bit-unchanged
  std::uint32_t clipped;   ///< norm > threshold
};

inline constexpr double kFloatMax = 3.4028234663852886e38;
inline constexpr double kDoubleMax = 1.7976931348623157e308;

/// Rounds to nearest like a cast, but a finite value beyond the range of float becomes the largest float.
GRADSYNC_HD inline float nearest_float(double value) {
  if (is_nan(value)) {
    return bits_as<float>(kFloatNan);
  }
  if (is_finite(value)) {
    value = value > kFloatMax ? kFloatMax : value < -kFloatMax ? -kFloatMax : value;
  }
  return static_cast<float>(value);
}

namespace detail {

/// The next value of the type towards 0; `value` is one of the type, and above 0.
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

/// A scale below 1 can lift a norm out of the doubles. It is then the largest of them, and clips by what is exact: the
/// norm before the division.
GRADSYNC_HD inline bool is_beyond_doubles(double raw_norm, double scale) {
  return is_finite(raw_norm) && !is_finite(raw_norm / scale);
}

GRADSYNC_HD inline double measured_norm(double raw_norm, double scale) {
  return is_beyond_doubles(raw_norm, scale) ? kDoubleMax : raw_norm / scale;
}

/// A finite norm above the range of float32 stays a float64: it must neither become infinite nor pretend to be less.
GRADSYNC_HD inline bool is_beyond_floats(double measured) { return is_finite(measured) && measured > kFloatMax; }

GRADSYNC_HD inline double torch_coefficient_of(double norm, const ClipLimit& limit) {
  if (limit.type == NormType::Float64) {
    return torch_coefficient<double>(norm, limit.max_norm);
  }
  const bool infinite = limit.max_norm > kFloatMax;  // to torch, which holds it in a float
  const float max_norm = infinite ? bits_as<float>(kFloatInfinity) : nearest_float(limit.max_norm);
  return torch_coefficient<float>(nearest_float(norm), max_norm);
}

}  // namespace detail

/// The norm of `clip` alone.
GRADSYNC_HD inline double reported_norm(double raw_norm, double scale, NormType type) {
  const double measured = detail::measured_norm(raw_norm, scale);
  const bool wide = type == NormType::Float64 || detail::is_beyond_floats(measured);
  return wide ? measured : static_cast<double>(nearest_float(measured));
}

/// `raw_norm` is the norm of the stored values, `scale` (> 0) the loss scale that they carry.
GRADSYNC_HD inline Clipping clip(const ClipLimit& limit, double raw_norm, double scale) {
  const double measured = detail::measured_norm(raw_norm, scale);
  const bool beyond = detail::is_beyond_doubles(raw_norm, scale);
  const bool held = !beyond && (limit.type == NormType::Float64 || !detail::is_beyond_floats(measured));
  const bool as_torch = limit.mode == ClipMode::Torch && held;

  Clipping found{};
  found.norm = reported_norm(raw_norm, scale, limit.type);
  found.threshold = limit.mode == ClipMode::MeasureOnly ? bits_as<double>(kDoubleInfinity) : limit.max_norm;
  found.coefficient = 1;
  const bool clipped = found.norm > found.threshold;
  found.clipped = clipped ? 1 : 0;
  if (as_torch) {
    found.coefficient = detail::torch_coefficient_of(found.norm, limit);
  } else if (clipped && is_finite(found.norm)) {
    const double factor = detail::smaller(limit.max_norm / found.norm, limit.max_norm / measured);
    found.coefficient = detail::shrink_to_fit(factor, measured, limit.max_norm, limit.type);
  }

  const double multiplier = found.coefficient / scale;
  if (clipped && is_finite(raw_norm) && !as_torch) {
    // What is multiplied is the stored values, so they are what must come to no more than max_norm.
    const double largest = limit.max_norm / raw_norm;
    const double factor = beyond ? largest : detail::smaller(multiplier, largest);
    found.multiplier = detail::shrink_to_fit(factor, raw_norm, limit.max_norm, limit.type);
    found.coefficient = beyond ? found.multiplier * scale : found.coefficient;
  } else {
    found.multiplier = limit.type == NormType::Float64 ? multiplier : static_cast<double>(nearest_float(multiplier));
  }
  found.multiply = limit.mode == ClipMode::Torch || found.multiplier != 1 ? 1 : 0;
  return found;
}

}  // namespace gradsync::arithmetic
