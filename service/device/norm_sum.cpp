#include "device/norm_sum.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace gradsync::device {

namespace {

// Within these bounds neither the sum nor any term that matters to it has left the normal doubles, and there is room
// to add the sums of every tensor there may be.
constexpr double kLargest = 1e280;
constexpr double kSmallest = 1e-280;

double power(double value, double p) { return p == 2 ? value * value : p == 1 ? value : std::pow(value, p); }

}  // namespace

bool needs_rescaling(const TensorSum& sum, double p) {
  return !std::isinf(p) && sum.nonfinite == 0 && sum.maximum > 0 &&
         !(sum.power_sum >= kSmallest && sum.power_sum <= kLargest);
}

double rescaling_divisor(double maximum, double p) { return p <= 64 ? std::ldexp(1.0, std::ilogb(maximum)) : maximum; }

void NormSum::add(const TensorSum& tensor) {
  maximum_ = std::max(maximum_, tensor.maximum);
  nonfinite_ += tensor.nonfinite;
  nan_ += tensor.nan;
  if (tensor.nonfinite != 0 || tensor.power_sum == 0) {
    return;
  }
  if (sum_ == 0 || tensor.scale == scale_) {
    sum_ += tensor.power_sum;
    scale_ = tensor.scale;
  } else if (tensor.scale < scale_) {
    sum_ += tensor.power_sum * power(tensor.scale / scale_, p_);
  } else {
    sum_ = sum_ * power(scale_ / tensor.scale, p_) + tensor.power_sum;
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
  const double root = p_ == 2 ? std::sqrt(sum_) : p_ == 1 ? sum_ : std::pow(sum_, 1 / p_);
  return root * scale_;
}

}  // namespace gradsync::device
