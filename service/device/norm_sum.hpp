#pragma once
// Tensors' sums of powers → one p-norm, without overflow or underflow of the powers, in the order in which they are
// added. A tensor's sum is Σ(|g| / scale)^p; the scale is 1 unless the plain sum was out of range.

#include <cstdint>

namespace gradsync::device {

struct TensorSum {
  double power_sum = 0;
  double scale = 1;
  double maximum = 0;  ///< of the finite |g|
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

  void add(const TensorSum& tensor);
  /// NaN if any value was NaN, else infinity if any was infinite.
  [[nodiscard]] double norm() const;

 private:
  double p_;
  double sum_ = 0;
  double scale_ = 1;
  double maximum_ = 0;
  std::uint64_t nonfinite_ = 0;
  std::uint64_t nan_ = 0;
};

}  // namespace gradsync::device
