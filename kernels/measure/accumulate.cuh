#pragma once
// Sums, in one thread, the vectors of a piece that are its own: fast, in fp32 pairs (fp64 pairs for fp64); and
// carefully, in fp64 with a test per element, when the fast sum says that it cannot be trusted.
//
// Bounds: squares of |x| in [2^-50, 2^58) neither overflow when up to 2^10 are added nor lose more than 2^-40 of their
// sum to underflow, if the largest is in that range. NaN shows in the sum, infinity in the maximum.

#include "arithmetic/fingerprint.hpp"
#include "kernels/block_reduce.cuh"
#include "kernels/format.cuh"

#include <type_traits>

namespace gradsync::kernels {

enum class Power : std::uint8_t { One, Two, Any, Maximum };

/// Fast sums of values that are computed with as float.
template <typename Format, Power kPower>
class FastSum {
 public:
  __device__ void add(const uint4& vector) {
    add_word(0, vector.x);
    add_word(1, vector.y);
    add_word(2, vector.z);
    add_word(3, vector.w);
  }

  /// False: something here needs care; `sum` is then unchanged.
  __device__ bool finish(ThreadSum& sum) const {
    if constexpr (kPower == Power::Maximum) {
      if (magnitude_ >= arithmetic::kFloatInfinity) {
        return false;
      }
      sum.maximum = static_cast<double>(arithmetic::bits_as<float>(magnitude_));
      return true;
    } else {
      const float all = (high_[0] + high_[1]) + (high_[2] + high_[3]);
      const bool in_range = kPower == Power::One ? maximum_ < 0x1p100F : maximum_ < 0x1p58F && maximum_ >= 0x1p-50F;
      if (all != all || !(maximum_ == 0 || in_range)) {
        return false;
      }
      sum.maximum = static_cast<double>(maximum_);
      sum.high = (pair(0) + pair(1)) + (pair(2) + pair(3));
      return true;
    }
  }

 private:
  __device__ double pair(std::uint32_t k) const { return static_cast<double>(high_[k]) + static_cast<double>(low_[k]); }

  __device__ void add_word(std::uint32_t k, std::uint32_t word) {
    if constexpr (std::is_same_v<Format, Float32>) {
      add_one(k, arithmetic::bits_as<float>(word));
    } else {
      const float even = Format::load(static_cast<std::uint16_t>(word));
      const float odd = Format::load(static_cast<std::uint16_t>(word >> 16));
      if constexpr (kPower == Power::Two) {
        // The squares are exact; their sum is rounded once.
        low_[k] += add_term(k, fmaf(odd, odd, even * even));
        see(even);
        see(odd);
      } else {
        add_one(k, even);
        add_one(k, odd);
      }
    }
  }

  __device__ void add_one(std::uint32_t k, float value) {
    if constexpr (kPower == Power::Two) {
      const float square = value * value;
      low_[k] += add_term(k, square) + fmaf(value, value, -square);
    } else if constexpr (kPower == Power::One) {
      low_[k] += add_term(k, fabsf(value));
    }
    see(value);
  }

  /// The part that the addition dropped.
  __device__ float add_term(std::uint32_t k, float term) {
    float error = 0;
    high_[k] = two_sum(high_[k], term, error);
    return error;
  }

  __device__ void see(float value) {
    if constexpr (kPower == Power::Maximum) {
      const std::uint32_t magnitude = arithmetic::bits_as<std::uint32_t>(value) & arithmetic::kFloatMagnitude;
      magnitude_ = magnitude > magnitude_ ? magnitude : magnitude_;
    } else {
      maximum_ = fmaxf(maximum_, fabsf(value));  // passes NaN over
    }
  }

  float high_[4] = {};
  float low_[4] = {};
  float maximum_ = 0;
  std::uint32_t magnitude_ = 0;
};

/// fp64: the same with pairs of doubles. `divisor` is a power of two; it is used only `kAgain`.
template <Power kPower, bool kAgain>
class FastDoubleSum {
 public:
  __device__ explicit FastDoubleSum(double divisor) : divisor_(divisor) {}

  __device__ void add(const uint4& vector) {
    add_one(0, Float64::load(stored_in<Float64>(vector, 0)));
    add_one(1, Float64::load(stored_in<Float64>(vector, 1)));
  }

  __device__ bool finish(ThreadSum& sum) const {
    const double all = high_[0] + high_[1];
    if (!arithmetic::is_finite(all) || !arithmetic::is_finite(maximum_)) {
      return false;
    }
    sum.maximum = maximum_;
    sum.high = high_[0];
    sum.low = low_[0];
    add_pair(sum.high, sum.low, high_[1], low_[1]);
    return true;
  }

 private:
  __device__ void add_one(std::uint32_t k, double stored) {
    maximum_ = fmax(maximum_, fabs(stored));
    double error = 0;
    const double value = kAgain ? stored / divisor_ : stored;
    if constexpr (kPower == Power::Two) {
      const double square = value * value;
      high_[k] = two_sum(high_[k], square, error);
      low_[k] += error + fma(value, value, -square);
    } else if constexpr (kPower == Power::One) {
      high_[k] = two_sum(high_[k], fabs(value), error);
      low_[k] += error;
    } else {
      high_[k] += value * 0;  // NaN for what is not finite
    }
  }

  double divisor_;
  double high_[2] = {};
  double low_[2] = {};
  double maximum_ = 0;
};

/// The vectors of one thread: `own`, `own + stride`, … of a piece.
struct Share {
  std::uint64_t address;
  std::uint32_t count;  ///< elements of the piece
  std::uint32_t own;
  std::uint32_t stride;
};

/// Element by element in fp64: counts what is not finite, and sums what the fast way cannot. No fingerprint.
template <typename Format, Power kPower>
__device__ __noinline__ ThreadSum sum_carefully(Share share, double p, double divisor) {
  ThreadSum sum;
  const auto* elements = reinterpret_cast<const typename Format::Stored*>(share.address);
  for (std::uint32_t first = share.own * Format::kPerVector; first < share.count;
       first += share.stride * Format::kPerVector) {
    const std::uint32_t rest = share.count - first;
    const std::uint32_t count = rest < Format::kPerVector ? rest : Format::kPerVector;
    for (std::uint32_t i = 0; i < count; ++i) {
      const double value = fabs(static_cast<double>(Format::load(__ldg(elements + first + i))));
      if (arithmetic::is_finite(value)) {
        sum.maximum = value > sum.maximum ? value : sum.maximum;
      } else {
        ++sum.nonfinite;
        sum.nan += arithmetic::is_nan(value) ? 1 : 0;
      }
      if constexpr (kPower != Power::Maximum) {
        const double scaled = divisor == 1 ? value : value / divisor;
        const double term = kPower == Power::Two ? scaled * scaled : kPower == Power::One ? scaled : pow(scaled, p);
        add_pair(sum.high, sum.low, term, 0);
      }
    }
  }
  return sum;
}

}  // namespace gradsync::kernels
