#pragma once
// Memory of one format with chosen content, and comparisons of chunks bit for bit, on every vector target.

#include "arithmetic/half.hpp"
#include "device/math/chunk_math.hpp"
#include "unit/device/vector_target.hpp"

#include <boost/align/aligned_allocator.hpp>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <tuple>
#include <vector>

namespace gradsync::device {

using plan::DType;

inline std::size_t width(DType dtype) { return dtype == DType::Float64 ? 8 : dtype == DType::Float32 ? 4 : 2; }

inline double decode(DType dtype, const std::byte* at) {
  switch (dtype) {
    case DType::Float32: {
      float value = 0;
      std::memcpy(&value, at, 4);
      return value;
    }
    case DType::Float64: {
      double value = 0;
      std::memcpy(&value, at, 8);
      return value;
    }
    default: {
      std::uint16_t value = 0;
      std::memcpy(&value, at, 2);
      return dtype == DType::BFloat16 ? arithmetic::bfloat16_to_float(value) : arithmetic::float16_to_float(value);
    }
  }
}

inline void encode(DType dtype, double value, std::byte* at) {
  const auto single = static_cast<float>(value);
  switch (dtype) {
    case DType::Float32:
      std::memcpy(at, &single, 4);
      return;
    case DType::Float64:
      std::memcpy(at, &value, 8);
      return;
    default: {
      const std::uint16_t bits =
          dtype == DType::BFloat16 ? arithmetic::float_to_bfloat16(single) : arithmetic::float_to_float16(single);
      std::memcpy(at, &bits, 2);
    }
  }
}

enum class Content { Ordinary, Denormal, Huge, NonFinite, AnyBits };

/// Values of one rank, `skew` elements behind the begin of a cache line.
class Memory {
 public:
  Memory(DType dtype, std::size_t count, std::size_t skew)
      : dtype_(dtype), count_(count), bytes_((count + skew + 1) * width(dtype), std::byte{0x5a}), skew_(skew) {}

  void fill(Content content, std::mt19937_64& random) {
    for (std::size_t i = 0; i < count_; ++i) {
      std::byte* at = begin() + i * width(dtype_);
      const std::uint64_t bits = random();
      const double unit = std::normal_distribution<double>()(random);
      switch (content) {
        case Content::Ordinary:
          encode(dtype_, bits % 64 == 0 ? -0.0 : unit, at);
          break;
        case Content::Denormal:
          encode(dtype_, unit * (dtype_ == DType::Float64 ? 1e-310 : dtype_ == DType::Float16 ? 1e-6 : 1e-39), at);
          break;
        case Content::Huge:
          encode(dtype_, unit * (dtype_ == DType::Float64 ? 5e307 : dtype_ == DType::Float16 ? 3e4 : 1.5e38), at);
          break;
        case Content::NonFinite:
          encode(
              dtype_,
              bits % 97 == 0   ? std::nan("")
              : bits % 89 == 0 ? -HUGE_VAL
              : bits % 83 == 0 ? HUGE_VAL
                               : unit,
              at
          );
          break;
        case Content::AnyBits:
          std::memcpy(at, &bits, width(dtype_));
          break;
      }
    }
  }

  [[nodiscard]] std::size_t skew() const { return skew_; }

  std::byte* begin() { return bytes_.data() + skew_ * width(dtype_); }

  double at(std::size_t i) { return decode(dtype_, begin() + i * width(dtype_)); }

  bool operator==(const Memory& other) const { return bytes_ == other.bytes_; }

  /// The same elements, and nothing written beside them, wherever they are.
  [[nodiscard]] bool holds_what(const Memory& other) const {
    Memory moved(dtype_, count_, skew_);
    std::copy_n(
        other.bytes_.begin() + static_cast<std::ptrdiff_t>(other.skew_ * width(dtype_)),
        count_ * width(dtype_),
        moved.bytes_.begin() + static_cast<std::ptrdiff_t>(skew_ * width(dtype_))
    );
    return bytes_ == moved.bytes_;
  }

 private:
  DType dtype_;
  std::size_t count_;
  std::vector<std::byte, boost::alignment::aligned_allocator<std::byte, 64>> bytes_;
  std::size_t skew_;
};

struct Outcome {
  ChunkStats stats;
  std::vector<Memory> memory;
  std::vector<std::uint64_t> source_nonfinite;
};

inline void expect_equal_bits(const Outcome& ours, const Outcome& reference, const std::string& what) {
  EXPECT_TRUE(ours.memory == reference.memory) << what;
  // NaN sums have no agreed bits; everything else has.
  if (std::isnan(reference.stats.power_sum.high)) {
    EXPECT_TRUE(std::isnan(ours.stats.power_sum.high)) << what;
  } else {
    EXPECT_EQ(ours.stats.power_sum, reference.stats.power_sum) << what;
  }
  EXPECT_EQ(std::bit_cast<std::uint64_t>(ours.stats.maximum), std::bit_cast<std::uint64_t>(reference.stats.maximum))
      << what;
  EXPECT_EQ(ours.stats.nonfinite, reference.stats.nonfinite) << what;
  EXPECT_EQ(ours.stats.nan, reference.stats.nan) << what;
  EXPECT_EQ(ours.source_nonfinite, reference.source_nonfinite) << what;
}

/// A test for each vector target and format.
class ChunkTest : public testing::TestWithParam<std::tuple<std::string, DType>> {
 protected:
  void SetUp() override { use_vector_target(target()); }

  void TearDown() override { use_vector_target(wanted_vector_target()); }

  [[nodiscard]] static std::string target() { return std::get<0>(GetParam()); }

  [[nodiscard]] static DType dtype() { return std::get<1>(GetParam()); }
};

inline std::string target_and_dtype(const testing::TestParamInfo<std::tuple<std::string, DType>>& given) {
  return std::get<0>(given.param) + "_" + std::string(plan::name_of(std::get<1>(given.param)));
}

}  // namespace gradsync::device
