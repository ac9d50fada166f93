// What the kernels define for themselves beside the CPU engine: sums that it would give, numbers of dtypes, found_inf.

#include "device/math/norm_sum.hpp"
#include "kernels/clip_outcome.hpp"
#include "kernels/dtype.hpp"
#include "kernels/power_sum.hpp"
#include "plan/dtype.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace gradsync::kernels {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(Clip, found_inf_means_values_that_are_not_finite_and_nothing_else) {
  const arithmetic::ClipLimit rule{1, arithmetic::ClipMode::Strict, arithmetic::NormType::Float32};
  EXPECT_EQ(clip(rule, 1e9, 1, 0).found_inf, 0U);
  EXPECT_EQ(clip(rule, kNan, 1, 2).found_inf, 1U);
  EXPECT_EQ(clip(rule, kNan, 1, 2).nonfinite, 2U);
}

TEST(PowerSum, adds_and_roots_like_the_norm_sum_of_the_cpu_engine) {
  std::mt19937_64 random(11);
  for (const double p : {1.0, 2.0, 2.5, 3.0, 100.0, kInfinity}) {
    for (int round = 0; round < 300; ++round) {
      PowerSum sum = empty_sum();
      device::NormSum theirs(p);
      for (int i = 0; i < 20; ++i) {
        PowerSum tensor = empty_sum();
        tensor.maximum = std::ldexp(1, static_cast<int>(random() % 1'900) - 950);
        tensor.high = std::isinf(p) ? 0 : power(tensor.maximum, p);
        tensor.nonfinite = round % 10 == 0 && i == 7 ? 2 : 0;
        tensor.nan = round % 20 == 0 && i == 7 ? 1 : 0;
        if (needs_rescaling(tensor, p)) {
          tensor.scale = rescaling_divisor(tensor.maximum, p);
          tensor.high = power(tensor.maximum / tensor.scale, p);
        }
        const device::TensorSum same{
            {tensor.high, tensor.low}, tensor.scale, tensor.maximum, tensor.nonfinite, tensor.nan};
        EXPECT_EQ(needs_rescaling(tensor, p), device::needs_rescaling(same, p));
        add_tensor(sum, tensor, p);
        theirs.add(same);
      }
      const double norm = norm_of(sum, p);
      if (std::isnan(theirs.norm())) {
        EXPECT_TRUE(std::isnan(norm));
      } else {
        // Ours keeps what theirs drops when it adds: equal but for the last bits.
        EXPECT_TRUE(norm == theirs.norm() || std::abs(norm / theirs.norm() - 1) < 1e-14) << norm << theirs.norm();
      }
    }
  }
}

TEST(DType, is_numbered_like_that_of_the_plan) {
  for (const DType dtype : {DType::Float32, DType::BFloat16, DType::Float16, DType::Float64}) {
    EXPECT_EQ(size_of(dtype), plan::size_of(static_cast<plan::DType>(dtype)));
  }
}

}  // namespace
}  // namespace gradsync::kernels
