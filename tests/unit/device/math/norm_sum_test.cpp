#include "device/math/norm_sum.hpp"

#include "device/math/chunk_reference.hpp"
#include "fakes/not_finite.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace gradsync::device {
namespace {

/// A tensor's sum as the lane takes it, second pass included.
TensorSum sum_of(const std::vector<double>& values, double p) {
  TensorSum sum;
  for (const double value : values) {
    if (std::isfinite(value)) {
      sum.maximum = std::max(sum.maximum, std::abs(value));
    } else {
      ++sum.nonfinite;
      sum.nan += std::isnan(value) ? 1 : 0;
    }
  }
  if (!std::isinf(p)) {
    sum.power_sum = power_sum(plan::DType::Float64, values.data(), values.size(), p, 1);
    if (needs_rescaling(sum, p)) {
      sum.scale = rescaling_divisor(sum.maximum, p);
      sum.power_sum = power_sum(plan::DType::Float64, values.data(), values.size(), p, sum.scale);
    }
  }
  return sum;
}

double norm_of(const std::vector<std::vector<double>>& tensors, double p) {
  NormSum norm(p);
  for (const auto& tensor : tensors) {
    norm.add(sum_of(tensor, p));
  }
  return norm.norm();
}

TEST(NormSum, plain_sums_need_no_second_pass) {
  EXPECT_FALSE(needs_rescaling(sum_of({3, 4}, 2), 2));
  EXPECT_FALSE(needs_rescaling(sum_of({0, 0}, 2), 2));
  EXPECT_FALSE(needs_rescaling(sum_of({1e-45, 3e38}, 2), 2));  // every float32 squares well within a double
  EXPECT_EQ(norm_of({{3, 0}, {0, -4}}, 2), 5);
  EXPECT_EQ(norm_of({{3, -2}, {4}}, 1), 9);
  EXPECT_EQ(norm_of({{3, -7}, {4}}, kInfinity), 7);
  EXPECT_EQ(norm_of({}, 2), 0);
}

TEST(NormSum, neither_overflows_nor_underflows) {
  EXPECT_DOUBLE_EQ(norm_of({{6e200, 4}, {8e200}}, 2), 1e201);
  EXPECT_DOUBLE_EQ(norm_of({{1e-200}}, 2), 1e-200);
  EXPECT_DOUBLE_EQ(norm_of({{3e-200}, {4e-200}}, 2), 5e-200);
  EXPECT_EQ(norm_of({{5e-324}}, 2), 5e-324);
  EXPECT_DOUBLE_EQ(norm_of({{1e-200}, {1e-5}}, 2), 1e-5);
  EXPECT_DOUBLE_EQ(norm_of({{1e-5}, {1e-200}, {1e200}}, 2), 1e200);
  EXPECT_DOUBLE_EQ(norm_of({{1.7e308}}, 1), 1.7e308);
  EXPECT_EQ(norm_of({{1.7e308, 1.7e308}}, 1), kInfinity);  // the norm itself is no double
}

TEST(NormSum, large_powers_work) {
  for (const double p : {50.0, 300.0, 2000.0}) {
    for (const double size : {1e-30, 1e-3, 1.0, 1e3, 1e30}) {
      const double expected = size * std::pow(2.0, 1 / p);
      EXPECT_NEAR(norm_of({{size, size}}, p) / expected, 1, 1e-13) << p << " " << size;
      EXPECT_NEAR(norm_of({{size}, {size}}, p) / expected, 1, 1e-13) << p << " " << size;
      EXPECT_NEAR(norm_of({{size / 1e6}, {size}, {size}}, p) / expected, 1, 1e-13) << p << " " << size;
    }
  }
}

TEST(NormSum, nonfinite_values_make_a_nonfinite_norm) {
  for (const double p : {1.0, 2.0, 3.5, kInfinity}) {
    EXPECT_EQ(norm_of({{1, kInfinity}, {2}}, p), kInfinity) << p;
    EXPECT_EQ(norm_of({{2}, {-kInfinity}}, p), kInfinity) << p;
    EXPECT_TRUE(std::isnan(norm_of({{1, kInfinity}, {std::nan("")}}, p))) << p;
    EXPECT_EQ(norm_of({{1e200}, {kInfinity}}, p), kInfinity) << p;
  }
}

}  // namespace
}  // namespace gradsync::device
