#include "plan/clip_rule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace gradsync::plan {

namespace {

constexpr double kFloatMax = std::numeric_limits<float>::max();

/// Rounds to nearest like a cast, but defined for values beyond the range of float: they stay what they are when
/// not finite and become the largest float when finite.
float nearest_float(double value) {
  if (std::isfinite(value)) {
    return static_cast<float>(std::clamp(value, -kFloatMax, kFloatMax));
  }
  if (std::isnan(value)) {
    return std::numeric_limits<float>::quiet_NaN();
  }
  return value > 0 ? std::numeric_limits<float>::infinity() : -std::numeric_limits<float>::infinity();
}

/// The largest value of `dtype`'s precision that is not above `value` (which is ≥ 0).
double round_down(double value, DType dtype) {
  if (dtype == DType::Float64) {
    return value;
  }
  const float nearest = nearest_float(value);
  return static_cast<double>(nearest) > value ? std::nextafter(nearest, 0.0F) : nearest;
}

/// A finite norm above the range of float32 stays a float64: it must neither become infinite nor pretend to be less.
double round_norm(double norm, DType dtype) {
  return dtype == DType::Float64 || (std::isfinite(norm) && norm > kFloatMax) ? norm : nearest_float(norm);
}

/// `min(1, max_norm / (norm + 1e-6))` as torch evaluates it for a 0-dim tensor of type T: `scalar / tensor` is
/// `tensor.reciprocal() * scalar`, each operation rounded to T, and clamp lets NaN through.
template <typename T>
double torch_coefficient(T norm, T max_norm) {
  const T shifted = norm + static_cast<T>(1e-6);
  const T reciprocal = T{1} / shifted;
  const T coefficient = reciprocal * max_norm;
  return coefficient > T{1} ? 1.0 : static_cast<double>(coefficient);
}

double next_below(double value, DType dtype) {
  return dtype == DType::Float64 ? std::nextafter(value, 0.0) : std::nextafter(static_cast<float>(value), 0.0F);
}

/// The largest factor of `dtype`'s precision, not above `factor`, that takes `norm` to no more than max_norm.
double shrink_to_fit(double factor, double norm, double max_norm, DType dtype) {
  factor = round_down(factor, dtype);
  while (factor > 0 && factor * norm > max_norm) {
    factor = next_below(factor, dtype);
  }
  return factor;
}

/// Rounded down, so that `coefficient * norm ≤ max_norm` holds for the norm that was measured, not only for the one
/// that is reported: rounding to nearest would leave half of all clipped steps a little above the threshold.
double strict_coefficient(double max_norm, double measured, double reported, DType dtype) {
  return shrink_to_fit(std::min(max_norm / reported, max_norm / measured), measured, max_norm, dtype);
}

/// The shortest text that reads back as the norm; longer where that text would look equal to the threshold.
std::string norm_text(double norm, double max_norm, DType dtype) {
  if (dtype != DType::Float64 && norm <= kFloatMax) {
    std::string text = fmt::format("{}", static_cast<float>(norm));
    if (norm == max_norm || text != fmt::format("{}", max_norm)) {
      return text;
    }
  }
  return fmt::format("{}", norm);
}

std::string compared_reason(const ClipOutcome& outcome, double max_norm, DType dtype) {
  return fmt::format(
      "norm {} {} max_norm {}",
      norm_text(outcome.norm, max_norm, dtype),
      outcome.clipped ? "exceeds" : "is within",
      max_norm
  );
}

std::string non_finite_reason(double norm, const char* consequence) {
  return fmt::format("norm is not finite: {} ({})", norm, consequence);
}

void decide_strict(const ClipRule& rule, double measured, ClipOutcome& outcome) {
  const double max_norm = *rule.max_norm;
  if (!std::isfinite(outcome.norm)) {
    outcome.reason = non_finite_reason(outcome.norm, "strict mode does not clip by it");
    return;
  }
  outcome.reason = compared_reason(outcome, max_norm, rule.norm_dtype);
  if (outcome.clipped) {
    outcome.coefficient = strict_coefficient(max_norm, measured, outcome.norm, rule.norm_dtype);
  }
}

void decide_torch(const ClipRule& rule, ClipOutcome& outcome) {
  const double max_norm = *rule.max_norm;
  outcome.coefficient = rule.norm_dtype == DType::Float64
                            ? torch_coefficient<double>(outcome.norm, max_norm)
                            : torch_coefficient<float>(nearest_float(outcome.norm), nearest_float(max_norm));
  if (!std::isfinite(outcome.norm)) {
    outcome.reason = non_finite_reason(
        outcome.norm, std::isnan(outcome.norm) ? "torch mode multiplies by NaN" : "torch mode multiplies by 0"
    );
  } else {
    outcome.reason = compared_reason(outcome, max_norm, rule.norm_dtype);
  }
}

}  // namespace

ClipOutcome apply_clip_rule(const ClipRule& rule, double raw_norm, double scale) {
  // A scale below 1 can lift a norm out of the doubles. It is then the largest of them, and clips by what is exact: the
  // norm before the division.
  const bool beyond = std::isfinite(raw_norm) && std::isinf(raw_norm / scale);
  const double measured = beyond ? std::numeric_limits<double>::max() : raw_norm / scale;
  const bool off = !rule.max_norm || (*rule.max_norm == 0 && rule.zero_rule == ZeroRule::Off);
  const bool torch = rule.mode == ClipMode::Torch && !off;

  ClipOutcome outcome;
  outcome.norm = round_norm(measured, rule.norm_dtype);
  outcome.threshold = off ? std::numeric_limits<double>::infinity() : *rule.max_norm;
  outcome.clipped = outcome.norm > outcome.threshold;
  if (off) {
    outcome.reason = !std::isfinite(outcome.norm) ? non_finite_reason(outcome.norm, "no max_norm: measured only")
                     : rule.max_norm              ? "max_norm 0 means off: measured only"
                                                  : "no max_norm: measured only";
  } else if (torch) {
    decide_torch(rule, outcome);
  } else {
    decide_strict(rule, measured, outcome);
  }

  const double multiplier = outcome.coefficient / scale;
  if (outcome.clipped && std::isfinite(raw_norm) && (!torch || beyond)) {
    // What is multiplied is the stored values, so they are what must come to no more than max_norm.
    const double largest = *rule.max_norm / raw_norm;
    outcome.multiplier =
        shrink_to_fit(beyond ? largest : std::min(multiplier, largest), raw_norm, *rule.max_norm, rule.norm_dtype);
    outcome.coefficient = beyond ? outcome.multiplier * scale : outcome.coefficient;
  } else {
    outcome.multiplier =
        rule.norm_dtype == DType::Float64 ? multiplier : static_cast<double>(nearest_float(multiplier));
  }
  outcome.multiply = torch || outcome.multiplier != 1.0;
  return outcome;
}

}  // namespace gradsync::plan
