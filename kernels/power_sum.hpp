#pragma once
// The result of one pass over a tensor or a group of tensors, the sum of two such results, and the norm of one.
// Compiled for host and device: the same bits on both (for p = 1, 2 and infinity).
//
// Formulas: service/device/math/norm_sum.cpp. The sum is kept as high + low (two doubles that do not overlap), so that
// a norm of fp64 gradients is within 1 ulp; without the low part everything here gives what NormSum gives.

#include "arithmetic/host_device.hpp"

#include <cmath>

namespace gradsync::kernels {

/// Σ(|g| / scale)^p = high + low. A plain struct, so that it can lie in shared memory: start from `empty_sum()`.
struct PowerSum {
  double high;
  double low;
  double scale;    ///< 1 unless the plain sum left [1e-280, 1e280]; then a power of two for p ≤ 64
  double maximum;  ///< of the finite |g|; 0 without any
  std::uint64_t nonfinite;
  std::uint64_t nan;
  std::uint64_t fingerprint;  ///< of a tensor's bytes; 0 when not asked for, and in sums over tensors
};

GRADSYNC_HD inline PowerSum empty_sum() { return {0, 0, 1, 0, 0, 0, 0}; }

/// a + b = sum + error, exactly, unless the sum overflows (then the error is NaN).
template <typename T>
GRADSYNC_HD inline T two_sum(T a, T b, T& error) {
  const T sum = a + b;
  const T of_b = sum - a;
  const T of_a = sum - of_b;
  error = (a - of_a) + (b - of_b);
  return sum;
}

/// Adds to high + low. An infinite or NaN sum has no low part.
GRADSYNC_HD inline void add_pair(double& high, double& low, double other_high, double other_low) {
  double error = 0;
  const double sum = two_sum(high, other_high, error);
  const double rest = arithmetic::is_finite(sum) ? error + (low + other_low) : 0;
  high = sum + rest;
  low = arithmetic::is_finite(sum) ? rest - (high - sum) : 0;
}

/// Parts of one tensor, which have one scale. Infinite and NaN sums stay so.
GRADSYNC_HD inline void add_part(PowerSum& sum, const PowerSum& part) {
  add_pair(sum.high, sum.low, part.high, part.low);
  sum.scale = part.scale;
  sum.maximum = part.maximum > sum.maximum ? part.maximum : sum.maximum;
  sum.nonfinite += part.nonfinite;
  sum.nan += part.nan;
  sum.fingerprint += part.fingerprint;
}

GRADSYNC_HD inline double power(double value, double p) {
  return p == 2 ? value * value : p == 1 ? value : std::pow(value, p);
}

/// Tensors or groups, each with its own scale. The sum of one with non-finite values is left out; its counts are not.
GRADSYNC_HD inline void add_tensor(PowerSum& sum, const PowerSum& tensor, double p) {
  const bool first = sum.nonfinite != 0 || sum.high == 0;
  sum.maximum = tensor.maximum > sum.maximum ? tensor.maximum : sum.maximum;
  if (tensor.nonfinite == 0 && tensor.high != 0) {
    if (first) {
      sum.high = tensor.high;
      sum.low = tensor.low;
      sum.scale = tensor.scale;
    } else if (tensor.scale == sum.scale) {
      add_pair(sum.high, sum.low, tensor.high, tensor.low);
    } else if (tensor.scale < sum.scale) {
      const double factor = power(tensor.scale / sum.scale, p);
      add_pair(sum.high, sum.low, tensor.high * factor, tensor.low * factor);
    } else {
      const double factor = power(sum.scale / tensor.scale, p);
      sum.high *= factor;
      sum.low *= factor;
      sum.scale = tensor.scale;
      add_pair(sum.high, sum.low, tensor.high, tensor.low);
    }
  }
  sum.nonfinite += tensor.nonfinite;
  sum.nan += tensor.nan;
}

/// Whether a plain sum lost what the norm needs, so that it must be taken again with `rescaling_divisor`.
GRADSYNC_HD inline bool needs_rescaling(const PowerSum& sum, double p) {
  return arithmetic::is_finite(p) && sum.nonfinite == 0 && sum.maximum > 0 &&
         !(sum.high >= 1e-280 && sum.high <= 1e280);
}

/// The power of two below the maximum, by which division is exact; the maximum itself where powers of 2 overflow.
GRADSYNC_HD inline double rescaling_divisor(double maximum, double p) {
  return p <= 64 ? std::ldexp(1.0, std::ilogb(maximum)) : maximum;
}

/// NaN if any value was NaN, else infinity if any was infinite. For p = 2 the root is correctly rounded.
GRADSYNC_HD inline double norm_of(const PowerSum& sum, double p) {
  if (sum.nan != 0) {
    return arithmetic::bits_as<double>(arithmetic::kDoubleNan);
  }
  if (sum.nonfinite != 0) {
    return arithmetic::bits_as<double>(arithmetic::kDoubleInfinity);
  }
  if (!arithmetic::is_finite(p)) {
    return sum.maximum;
  }
  if (sum.high == 0 || p == 1) {
    return sum.high * sum.scale;
  }
  if (p != 2) {
    return std::pow(sum.high, 1 / p) * sum.scale;
  }
  const double root = std::sqrt(sum.high);
  const double rest = std::fma(-root, root, sum.high) + sum.low;
  return (root + rest / (2 * root)) * sum.scale;
}

}  // namespace gradsync::kernels
