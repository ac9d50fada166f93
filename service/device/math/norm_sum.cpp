#include "device/math/norm_sum.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace gradsync::device {

namespace {

// Within these bounds neither the sum nor any term that matters to it has left the normal doubles, and there is room
// to add the sums of every tensor there may be.
constexpr double kLargest = 1e280;
constexpr double kSmallest = 1e-280;

static_assert(std::numeric_limits<long double>::digits >= 64, "powers and roots other than 1 and 2 need the bits");

/// (scale / larger)^p. Scales are powers of two where p is 1 or 2.
DoubleDouble power_of_ratio(double scale, double larger, double p) {
  const double ratio = scale / larger;
  if (p == 1 || p == 2) {
    return {p == 1 ? ratio : ratio * ratio, 0};
  }
  const long double power = std::pow(static_cast<long double>(scale) / larger, static_cast<long double>(p));
  const auto high = static_cast<double>(power);
  return {high, static_cast<double>(power - high)};
}

/// Newton's step from the root of `high` takes in what the root lost, and `low`: one rounding is left.
double square_root(DoubleDouble sum) {
  const double root = std::sqrt(sum.high);
  return root > 0 && std::isfinite(root) ? root + (std::fma(-root, root, sum.high) + sum.low) / (2 * root) : root;
}

}  // namespace

bool needs_rescaling(const TensorSum& sum, double p) {
  return !std::isinf(p) && sum.nonfinite == 0 && sum.maximum > 0 &&
         !(sum.power_sum.high >= kSmallest && sum.power_sum.high <= kLargest);
}

double rescaling_divisor(double maximum, double p) { return p <= 64 ? std::ldexp(1.0, std::ilogb(maximum)) : maximum; }

void NormSum::add_unlike(const TensorSum& tensor) {
  maximum_ = std::max(maximum_, tensor.maximum);
  nonfinite_ += tensor.nonfinite;
  nan_ += tensor.nan;
  if (tensor.nonfinite != 0 || tensor.power_sum.high == 0) {
    return;
  }
  if (sum_.high == 0 || tensor.scale == scale_) {
    sum_ = sum_ + tensor.power_sum;
    scale_ = tensor.scale;
  } else if (tensor.scale < scale_) {
    sum_ = sum_ + tensor.power_sum * power_of_ratio(tensor.scale, scale_, p_);
  } else {
    sum_ = sum_ * power_of_ratio(scale_, tensor.scale, p_) + tensor.power_sum;
    scale_ = tensor.scale;
  }
}

double NormSum::norm() const {
  if (nan_ != 0) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (nonfinite_ != 0) {
    return std::numeric_limits<double>::infinity();
  }
  if (std::isinf(p_)) {
    return maximum_;
  }
  if (p_ == 1 || p_ == 2) {
    return (p_ == 2 ? square_root(sum_) : sum_.high) * scale_;
  }
  const long double sum = static_cast<long double>(sum_.high) + sum_.low;
  return static_cast<double>(std::pow(sum, 1 / static_cast<long double>(p_)) * scale_);
}

}  // namespace gradsync::device
