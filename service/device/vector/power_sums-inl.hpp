// The 32 accumulators of a chunk as vectors. Included once per vector target (foreach_target.h), hence no
// `#pragma once`. Squares of floats are exact in a double and are added plainly; powers of doubles are compensated:
// every rounding error goes to a second accumulator beside the first.

#if defined(GRADSYNC_DEVICE_POWER_SUMS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADSYNC_DEVICE_POWER_SUMS_INL
#undef GRADSYNC_DEVICE_POWER_SUMS_INL
#else
#define GRADSYNC_DEVICE_POWER_SUMS_INL
#endif

#include "device/math/chunk_math.hpp"
#include "device/math/chunk_reference.hpp"
#include "device/vector/row_formats-inl.hpp"

#include <hwy/highway.h>

#include <array>
#include <cstddef>

HWY_BEFORE_NAMESPACE();

namespace gradsync::device::HWY_NAMESPACE {

inline constexpr std::size_t kDoubleLanes = hn::MaxLanes(DDouble());
inline constexpr std::size_t kSumVectors = kAccumulators / kDoubleLanes;

/// Lives in registers: it may be passed by reference only to what is inlined.
template <typename Value>
struct PowerSums;

template <>
struct PowerSums<float> {
  VDouble high[kSumVectors];
};

template <>
struct PowerSums<double> {
  VDouble high[kSumVectors];
  VDouble low[kSumVectors];
};

HWY_INLINE void clear(VDouble (&sums)[kSumVectors]) {
  GRADSYNC_UNROLL
  for (std::size_t k = 0; k < kSumVectors; ++k) {
    sums[k] = hn::Zero(DDouble());
  }
}

HWY_INLINE void clear(PowerSums<float>& sums) { clear(sums.high); }

HWY_INLINE void clear(PowerSums<double>& sums) {
  clear(sums.high);
  clear(sums.low);
}

/// Adds |value|^p of a float that was widened. Its square is exact in a double, so that a fused multiply-add, where
/// the target has one, rounds the same number as a product and a sum do.
template <PowerKind kPower>
HWY_INLINE void add_power_of_float(VDouble value, VDouble& sum) {
  sum = kPower == PowerKind::Two ? hn::MulAdd(value, value, sum) : hn::Add(sum, hn::Abs(value));
}

/// Adds the powers of vector `k` of a row.
template <PowerKind kPower>
HWY_INLINE void add_powers(VFloat value, std::size_t k, PowerSums<float>& sums) {
  const DDouble d;
#if HWY_TARGET == HWY_SCALAR
  add_power_of_float<kPower>(hn::PromoteTo(d, value), sums.high[k]);
#else
  const hn::Half<DFloat> half;
  add_power_of_float<kPower>(hn::PromoteTo(d, hn::LowerHalf(half, value)), sums.high[2 * k]);
  add_power_of_float<kPower>(hn::PromoteTo(d, hn::UpperHalf(half, value)), sums.high[2 * k + 1]);
#endif
}

/// value² − square, exact for squares from kSmallestExactSquare on, and 0 below it, where targets would differ.
HWY_INLINE VDouble square_error(VDouble value, VDouble square) {
  const DDouble d;
#if HWY_NATIVE_FMA
  const VDouble error = hn::MulSub(value, value, square);
#else
  // Veltkamp's halves of 26 bits; their products are exact, and so is every sum here (Dekker).
  const VDouble shifted = hn::Mul(value, hn::Set(d, 134217729.0));
  const VDouble upper = hn::Sub(shifted, hn::Sub(shifted, value));
  const VDouble lower = hn::Sub(value, upper);
  const VDouble cross = hn::Mul(hn::Add(upper, upper), lower);
  const VDouble error = hn::Add(hn::Add(hn::Sub(hn::Mul(upper, upper), square), cross), hn::Mul(lower, lower));
#endif
  return hn::IfThenElseZero(hn::Ge(square, hn::Set(d, kSmallestExactSquare)), error);
}

/// The square of a double is rounded, and so is the sum: both errors are kept.
template <PowerKind kPower>
HWY_INLINE void add_powers(VDouble value, std::size_t k, PowerSums<double>& sums) {
  const VDouble power = kPower == PowerKind::Two ? hn::Mul(value, value) : hn::Abs(value);
  const VDouble before = sums.high[k];
  const VDouble sum = hn::Add(before, power);
  const VDouble rest = hn::Sub(sum, before);
  VDouble error = hn::Add(hn::Sub(before, hn::Sub(sum, rest)), hn::Sub(power, rest));
  if constexpr (kPower == PowerKind::Two) {
    error = hn::Add(error, square_error(value, power));
  }
  sums.high[k] = sum;
  sums.low[k] = hn::Add(sums.low[k], error);
}

/// The accumulators by element. A vector of values has one vector of sums per half, or one if it is of doubles.
template <typename Row>
HWY_INLINE std::array<double, kAccumulators> in_order(const VDouble (&sums)[kSumVectors]) {
  constexpr std::size_t kHalves = kSumVectors / Row::kVectors;
  HWY_ALIGN double lanes[kDoubleLanes];
  std::array<double, kAccumulators> ordered;
  GRADSYNC_UNROLL  // an index that is no constant would keep the sums in memory during the whole loop over the rows
      for (std::size_t s = 0; s < kSumVectors; ++s) {
    hn::StoreU(sums[s], DDouble(), lanes);
    for (std::size_t lane = 0; lane < kDoubleLanes; ++lane) {
      ordered[Row::element(s / kHalves, s % kHalves * kDoubleLanes + lane)] = lanes[lane];
    }
  }
  return ordered;
}

/// Does the same as `combine_accumulators`, with the bounds of its loops as constants.
template <std::size_t kHalf = kAccumulators / 2>
HWY_INLINE double combined(std::array<double, kAccumulators>& sums) {
  GRADSYNC_UNROLL
  for (std::size_t i = 0; i < kHalf; ++i) {
    sums[i] += sums[i + kHalf];
  }
  if constexpr (kHalf == 1) {
    return sums[0];
  } else {
    return combined<kHalf / 2>(sums);
  }
}

template <typename Row>
HWY_INLINE DoubleDouble total(const PowerSums<float>& sums) {
  std::array<double, kAccumulators> ordered = in_order<Row>(sums.high);
  return {combined(ordered), 0};
}

template <typename Row>
HWY_INLINE DoubleDouble total(const PowerSums<double>& sums) {
  return combine_accumulators(in_order<Row>(sums.high), in_order<Row>(sums.low));
}

}  // namespace gradsync::device::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#endif
