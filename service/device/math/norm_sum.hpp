#pragma once
// Tensors' sums of powers → one p-norm, without overflow or underflow of the powers, in the order in which they are
// added. A tensor's sum is Σ(|g| / scale)^p; the scale is 1 unless the plain sum was out of range.
//
// How exact the norm of float64 values is, in ulp of a double from their correctly rounded norm: p = 1, 2, ∞ and p ≥ 3:
// 1 at most (for p other than 1, 2 and ∞ given a libm whose pow errs by less than 0.55 ulp, as glibc's does);
// 1 < p < 3 but for 2: 2 at most, of the last pow of each element. Sums of narrower values are exact to a few ulp of a
// double, much less than an ulp of a float; so is a float64 norm to which such tensors contribute. A norm above the
// doubles is infinite.

#include "arithmetic/double_double.hpp"

#include <cstdint>

namespace gradsync::device {

using arithmetic::DoubleDouble;

struct TensorSum {
  DoubleDouble power_sum;
  double scale = 1;
  double maximum = 0;  ///< the largest finite |g|
  std::uint64_t nonfinite = 0;
  std::uint64_t nan = 0;
};

/// Whether a plain sum of powers lost what the norm needs, so that it must be taken again with `rescaling_divisor`.
[[nodiscard]] bool needs_rescaling(const TensorSum& sum, double p);

/// The power of two below the maximum, by which division is exact; the maximum itself where even powers of 2 overflow.
[[nodiscard]] double rescaling_divisor(double maximum, double p);

class NormSum {
 public:
  explicit NormSum(double p) : p_(p) {}

  void add(const TensorSum& tensor) {
    if (tensor.nonfinite == 0 && tensor.scale == scale_ && tensor.power_sum.high != 0) {
      maximum_ = tensor.maximum > maximum_ ? tensor.maximum : maximum_;
      sum_ = sum_ + tensor.power_sum;
    } else {
      add_unlike(tensor);
    }
  }

  /// What was added, as one: adding it to another sum adds all of that.
  [[nodiscard]] TensorSum sum() const { return {sum_, scale_, maximum_, nonfinite_, nan_}; }

  /// NaN if any value was NaN, else infinity if any was infinite.
  [[nodiscard]] double norm() const;

 private:
  void add_unlike(const TensorSum& tensor);

  double p_;
  DoubleDouble sum_;
  double scale_ = 1;
  double maximum_ = 0;
  std::uint64_t nonfinite_ = 0;
  std::uint64_t nan_ = 0;
};

}  // namespace gradsync::device
