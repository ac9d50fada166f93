// The formulas that the kernels share with the CPU engine give the same bits.

#include "kernels/clip.hpp"

#include "device/half.hpp"
#include "device/norm_sum.hpp"
#include "kernels/dtype.hpp"
#include "kernels/half.hpp"
#include "kernels/power_sum.hpp"
#include "plan/clip_rule.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace gradsync::kernels {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

void expect_same(const plan::ClipRule& theirs, double norm, double scale) {
  const bool off = !theirs.max_norm || (*theirs.max_norm == 0 && theirs.zero_rule == plan::ZeroRule::Off);
  const ClipRule ours{
      theirs.max_norm.value_or(0),
      off                                    ? ClipMode::MeasureOnly
      : theirs.mode == plan::ClipMode::Torch ? ClipMode::Torch
                                             : ClipMode::Strict,
      theirs.norm_dtype == plan::DType::Float64 ? NormType::Float64 : NormType::Float32};
  const plan::ClipOutcome expected = plan::apply_clip_rule(theirs, norm, scale);
  const ClipOutcome outcome = clip(ours, norm, scale, 0);
  const auto bits = [](double value) { return std::isnan(value) ? kDoubleNan : bits_as<std::uint64_t>(value); };
  EXPECT_EQ(bits(outcome.norm), bits(expected.norm)) << norm << " " << scale;
  EXPECT_EQ(bits(outcome.threshold), bits(expected.threshold));
  EXPECT_EQ(bits(outcome.coefficient), bits(expected.coefficient)) << norm << " " << scale << " " << ours.max_norm;
  EXPECT_EQ(bits(outcome.multiplier), bits(expected.multiplier)) << norm << " " << scale << " " << ours.max_norm;
  EXPECT_EQ(outcome.multiply != 0, expected.multiply);
  EXPECT_EQ(outcome.clipped != 0, expected.clipped);
}

TEST(Clip, gives_the_doubles_of_the_rule_of_the_plan) {
  std::mt19937_64 random(7);
  std::vector<double> norms{0, 1, 1e-6, 5e-324, 1e-45, 3.4028234663852886e38, 3.5e38, 1e300, kInfinity, kNan};
  std::vector<std::optional<double>> thresholds{std::nullopt, 0.0, 1.0, 0.1, 1e-40, 1e300};
  for (int i = 0; i < 3'000; ++i) {
    norms.push_back(
        std::ldexp(1 + static_cast<double>(random() >> 12) * 0x1p-52, static_cast<int>(random() % 200) - 100)
    );
  }
  for (int i = 0; i < 12; ++i) {
    thresholds.emplace_back(
        std::ldexp(1 + static_cast<double>(random() >> 12) * 0x1p-52, static_cast<int>(random() % 40) - 20)
    );
  }
  for (const double norm : norms) {
    for (const auto& threshold : thresholds) {
      for (const plan::ClipMode mode : {plan::ClipMode::Strict, plan::ClipMode::Torch}) {
        for (const plan::DType dtype : {plan::DType::Float32, plan::DType::Float64}) {
          const plan::ZeroRule zero = threshold == 0.0 && norm > 1 ? plan::ZeroRule::Off : plan::ZeroRule::Zero;
          for (const double scale : {1.0, 65'536.0, 3.0, 1e-30}) {
            expect_same({threshold, mode, zero, dtype}, norm, scale);
          }
        }
      }
    }
  }
}

TEST(Clip, found_inf_means_values_that_are_not_finite_and_nothing_else) {
  const ClipRule rule{1, ClipMode::Strict, NormType::Float32};
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

TEST(Half, conversions_are_those_of_the_cpu_engine) {
  for (std::uint32_t half = 0; half < 0x1'0000; ++half) {
    const auto bits = static_cast<std::uint16_t>(half);
    EXPECT_EQ(bits_as<std::uint32_t>(bfloat16_to_float(bits)), bits_as<std::uint32_t>(device::bfloat16_to_float(bits)));
    EXPECT_EQ(bits_as<std::uint32_t>(float16_to_float(bits)), bits_as<std::uint32_t>(device::float16_to_float(bits)));
  }
  for (std::uint64_t bits = 0; bits < (1ULL << 32); bits += 4'093) {
    const auto value = bits_as<float>(static_cast<std::uint32_t>(bits));
    ASSERT_EQ(float_to_bfloat16(value), device::float_to_bfloat16(value)) << value;
    ASSERT_EQ(float_to_float16(value), device::float_to_float16(value)) << value;
  }
}

TEST(Half, dtypes_are_numbered_like_those_of_the_plan) {
  for (const DType dtype : {DType::Float32, DType::BFloat16, DType::Float16, DType::Float64}) {
    EXPECT_EQ(size_of(dtype), plan::size_of(static_cast<plan::DType>(dtype)));
  }
}

}  // namespace
}  // namespace gradsync::kernels
