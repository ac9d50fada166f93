// The 16-bit conversions against a method that shares nothing with them: exact arithmetic in double.

#include "arithmetic/half.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace gradsync::arithmetic {
namespace {

/// A binary format described by numbers: nearest representable value, ties to even significand, via fp64.
double round_by_quantum(double value, int precision, int lowest_exponent, double overflow_from) {
  if (value == 0 || !std::isfinite(value)) {
    return value;
  }
  if (std::abs(value) >= overflow_from) {
    return std::copysign(std::numeric_limits<double>::infinity(), value);
  }
  const int exponent = std::max(std::ilogb(value), lowest_exponent);
  const double quantum = std::ldexp(1.0, exponent - (precision - 1));
  return std::nearbyint(value / quantum) * quantum;  // the division is exact; nearbyint takes ties to even
}

double bfloat16_oracle(float value) { return round_by_quantum(value, 8, -126, std::bit_cast<float>(0x7f7f8000U)); }

double float16_oracle(float value) { return round_by_quantum(value, 11, -14, 65520.0); }

std::vector<float> interesting_floats() {
  std::vector<float> values;
  const auto add_neighbours = [&](std::uint32_t bits) {
    for (const int delta : {-2, -1, 0, 1, 2}) {
      for (const std::uint32_t sign : {0U, 0x8000'0000U}) {
        values.push_back(std::bit_cast<float>((bits + static_cast<std::uint32_t>(delta)) ^ sign));
      }
    }
  };
  for (std::uint32_t half = 0; half < 0x8000U; ++half) {
    add_neighbours(half << 16);              // bfloat16 values
    add_neighbours((half << 16) | 0x8000U);  // and the ties between them
    const float f16 = float16_to_float(static_cast<std::uint16_t>(half));
    add_neighbours(std::bit_cast<std::uint32_t>(f16));
    const float next = float16_to_float(static_cast<std::uint16_t>(half + 1));
    if (std::isfinite(f16) && std::isfinite(next)) {
      add_neighbours(std::bit_cast<std::uint32_t>((f16 + next) / 2));
    }
  }
  std::mt19937_64 random(20240601);
  for (int i = 0; i < 2'000'000; ++i) {
    values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
  }
  for (int i = 0; i < 2'000'000; ++i) {  // the range of float16, subnormals included
    values.push_back(std::ldexp(static_cast<float>(random() % (1U << 24)), static_cast<int>(random() % 48) - 54));
  }
  return values;
}

TEST(Half, every_float16_value_survives_the_round_trip) {
  for (std::uint32_t half = 0; half < 0x10000U; ++half) {
    const auto bits = static_cast<std::uint16_t>(half);
    const float value = float16_to_float(bits);
    const int exponent = (bits >> 10) & 0x1f;
    if (exponent == 0x1f && (bits & 0x3ff) != 0) {
      EXPECT_TRUE(std::isnan(value)) << half;
      EXPECT_EQ(float_to_float16(value), kFloat16Nan) << half;
      continue;
    }
    const double magnitude = exponent == 0x1f ? std::numeric_limits<double>::infinity()
                             : exponent == 0  ? std::ldexp(bits & 0x3ff, -24)
                                              : std::ldexp(1024 + (bits & 0x3ff), exponent - 25);
    ASSERT_EQ(value, (bits & 0x8000) != 0 ? -magnitude : magnitude) << half;
    ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0) << half;
    ASSERT_EQ(float_to_float16(value), bits);
  }
}

TEST(Half, every_bfloat16_value_survives_the_round_trip) {
  for (std::uint32_t half = 0; half < 0x10000U; ++half) {
    const float value = bfloat16_to_float(static_cast<std::uint16_t>(half));
    ASSERT_EQ(float_to_bfloat16(value), std::isnan(value) ? kBFloat16Nan : half);
  }
}

TEST(Half, rounds_to_nearest_even_like_exact_arithmetic) {
  for (const float value : interesting_floats()) {
    const std::uint16_t bfloat = float_to_bfloat16(value);
    const std::uint16_t half = float_to_float16(value);
    if (std::isnan(value)) {
      ASSERT_EQ(bfloat, kBFloat16Nan);
      ASSERT_EQ(half, kFloat16Nan);
      continue;
    }
    ASSERT_EQ(bfloat16_to_float(bfloat), bfloat16_oracle(value)) << std::hexfloat << value;
    ASSERT_EQ(float16_to_float(half), float16_oracle(value)) << std::hexfloat << value;
    ASSERT_EQ((bfloat & 0x8000) != 0, std::signbit(value)) << std::hexfloat << value;
    ASSERT_EQ((half & 0x8000) != 0, std::signbit(value)) << std::hexfloat << value;
  }
}

}  // namespace
}  // namespace gradsync::arithmetic
