#pragma once
// A sum as an unevaluated pair of doubles, about 104 bits: what sums of powers are carried in, so that the norm of
// float64 gradients is rounded once. Only with exact rounding to nearest: no fast-math, no contraction. Compiled for
// host and device: the same bits on both.

#include "arithmetic/host_device.hpp"

#include <cmath>

namespace gradsync::arithmetic {

/// `high` is the sum rounded to a double once it is normalised; `low` is the rest.
struct DoubleDouble {
  double high = 0;
  double low = 0;

  bool operator==(const DoubleDouble&) const = default;
};

/// a + b without error, whatever their order.
GRADSYNC_HD inline DoubleDouble two_sum(double a, double b) {
  const double sum = a + b;
  const double rest = sum - a;
  return {sum, (a - (sum - rest)) + (b - rest)};
}

/// a + b without error where |a| ≥ |b| or a is 0.
GRADSYNC_HD inline DoubleDouble fast_two_sum(double a, double b) {
  const double sum = a + b;
  return {sum, b - (sum - a)};
}

/// a · b without error, unless the error lies below the doubles.
GRADSYNC_HD inline DoubleDouble two_product(double a, double b) {
  const double product = a * b;
  return {product, std::fma(a, b, -product)};
}

GRADSYNC_HD inline DoubleDouble operator+(DoubleDouble a, DoubleDouble b) {
  const DoubleDouble high = two_sum(a.high, b.high);
  const DoubleDouble low = two_sum(a.low, b.low);
  const DoubleDouble sum = fast_two_sum(high.high, high.low + low.high);
  return fast_two_sum(sum.high, sum.low + low.low);
}

GRADSYNC_HD inline DoubleDouble operator*(DoubleDouble a, DoubleDouble b) {
  const DoubleDouble product = two_product(a.high, b.high);
  return fast_two_sum(product.high, product.low + (a.high * b.low + a.low * b.high));
}

}  // namespace gradsync::arithmetic
