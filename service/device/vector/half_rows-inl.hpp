// Rows of bfloat16 and float16: stored in 16 bits, computed with in float. Included once per vector target
// (foreach_target.h), hence no `#pragma once`. In both formats `round` never sees a NaN or a value beyond the overflow
// bound.

#if defined(GRADSYNC_DEVICE_HALF_ROWS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADSYNC_DEVICE_HALF_ROWS_INL
#undef GRADSYNC_DEVICE_HALF_ROWS_INL
#else
#define GRADSYNC_DEVICE_HALF_ROWS_INL
#endif

#include "arithmetic/half.hpp"
#include "device/vector/row_formats-inl.hpp"

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

HWY_BEFORE_NAMESPACE();

namespace gradsync::device::HWY_NAMESPACE {

/// float32 → the bits of a bfloat16 in the upper half, still with what was cut off in the lower.
HWY_INLINE VFloatBits round_bfloat16(VFloat value) {
  const DFloatBits d;
  const VFloatBits bits = hn::BitCast(d, value);
  const VFloatBits odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1U));
  return hn::Add(hn::Add(bits, hn::Set(d, 0x7fffU)), odd);
}

/// Elements in the order of memory, as those of the other formats are, so that rows of several formats can be added.
struct BFloat16InOrderRow : RowShape<DFloat> {
  using Stored = std::uint16_t;
  using DRaw = DHalf;
  using Raw = VHalf;
  static constexpr plan::DType kDType = plan::DType::BFloat16;
  static constexpr std::size_t kRaws = kVectors;
  static constexpr Bits kOverflow = arithmetic::kBFloat16Overflow;

  static constexpr std::size_t element(std::size_t vector, std::size_t lane) { return vector * kLanes + lane; }

  static HWY_INLINE void widen(const Raw (&raw)[kRaws], V (&values)[kVectors]) {
    GRADSYNC_UNROLL
    for (std::size_t k = 0; k < kVectors; ++k) {
      values[k] = hn::BitCast(D(), hn::ShiftLeft<16>(hn::PromoteTo(DFloatBits(), raw[k])));
    }
  }

  static HWY_INLINE void round(V (&values)[kVectors], Raw (&raw)[kRaws]) {
    GRADSYNC_UNROLL
    for (std::size_t k = 0; k < kVectors; ++k) {
      const VFloatBits half = hn::ShiftRight<16>(round_bfloat16(values[k]));
      values[k] = hn::BitCast(D(), hn::ShiftLeft<16>(half));
      raw[k] = hn::TruncateTo(DHalf(), half);
    }
  }
};

#if HWY_TARGET == HWY_SCALAR

using BFloat16Row = BFloat16InOrderRow;

#else

/// Elements in pairs: of every 32 bits the lower half is an even element, the upper an odd one (little-endian), so that
/// no lane ever moves. The accumulators are permuted likewise and put in order once per chunk.
struct BFloat16Row : RowShape<DFloat> {
  using Stored = std::uint16_t;
  using DPairs = hn::Repartition<std::uint16_t, DFloat>;
  using DRaw = DPairs;
  using Raw = hn::Vec<DPairs>;
  static constexpr plan::DType kDType = plan::DType::BFloat16;
  static constexpr std::size_t kRaws = kVectors / 2;
  static constexpr Bits kOverflow = arithmetic::kBFloat16Overflow;

  static constexpr std::size_t element(std::size_t vector, std::size_t lane) {
    return (vector / 2) * (2 * kLanes) + 2 * lane + vector % 2;
  }

  static HWY_INLINE void widen(const Raw (&raw)[kRaws], V (&values)[kVectors]) {
    const DFloatBits d;
    GRADSYNC_UNROLL
    for (std::size_t k = 0; k < kRaws; ++k) {
      const VFloatBits pairs = hn::BitCast(d, raw[k]);
      values[2 * k] = hn::BitCast(D(), hn::ShiftLeft<16>(pairs));
      values[2 * k + 1] = hn::BitCast(D(), hn::And(pairs, hn::Set(d, 0xffff'0000U)));
    }
  }

  static HWY_INLINE void round(V (&values)[kVectors], Raw (&raw)[kRaws]) {
    const DFloatBits d;
    const VFloatBits upper = hn::Set(d, 0xffff'0000U);
    GRADSYNC_UNROLL
    for (std::size_t k = 0; k < kRaws; ++k) {
      const VFloatBits even = round_bfloat16(values[2 * k]);
      const VFloatBits odd = hn::And(round_bfloat16(values[2 * k + 1]), upper);
      values[2 * k] = hn::BitCast(D(), hn::And(even, upper));
      values[2 * k + 1] = hn::BitCast(D(), odd);
      raw[k] = hn::BitCast(DPairs(), hn::Or(hn::ShiftRight<16>(even), odd));
    }
  }
};

#endif

struct Float16Row : RowShape<DFloat> {
  using Stored = std::uint16_t;
  using DRaw = DHalf;
  using Raw = VHalf;
  static constexpr plan::DType kDType = plan::DType::Float16;
  static constexpr std::size_t kRaws = kVectors;
  static constexpr Bits kOverflow = arithmetic::kFloat16Overflow;

  static constexpr std::size_t element(std::size_t vector, std::size_t lane) { return vector * kLanes + lane; }

  static HWY_INLINE VFloat decode(VHalf half) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
    // The instruction is exact, subnormals included, whatever the floating-point modes say.
    return hn::PromoteTo(D(), hn::BitCast(hn::Rebind<hwy::float16_t, DFloat>(), half));
#else
    const DFloatBits d;
    const VFloatBits wide = hn::PromoteTo(d, half);
    const VFloatBits sign = hn::ShiftLeft<16>(hn::And(wide, hn::Set(d, 0x8000U)));
    const VFloatBits magnitude = hn::ShiftLeft<13>(hn::And(wide, hn::Set(d, 0x7fffU)));
    const VFloatBits normal = hn::Add(magnitude, hn::Set(d, 112U << 23));
    // Subnormal: give the mantissa the exponent 2^-14 and take 2^-14 away again; both steps are exact.
    const VFloatBits lowest = hn::Set(d, 113U << 23);
    const VFloat subnormal = hn::Sub(hn::BitCast(D(), hn::Add(magnitude, lowest)), hn::BitCast(D(), lowest));
    const VFloatBits nonfinite = hn::Or(magnitude, hn::Set(d, arithmetic::kFloatInfinity));
    VFloatBits bits = hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 1U << 23)), hn::BitCast(d, subnormal), normal);
    bits = hn::IfThenElse(hn::Gt(magnitude, hn::Set(d, (31U << 23) - 1U)), nonfinite, bits);
    return hn::BitCast(D(), hn::Or(bits, sign));
#endif
  }

  static HWY_INLINE VHalf encode(VFloat value) {
    const DFloatBits d;
    const VFloatBits bits = hn::BitCast(d, value);
    const VFloatBits sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 0x8000U));
    const VFloatBits magnitude = hn::And(bits, hn::Set(d, arithmetic::kFloatMagnitude));
    const VFloatBits odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(d, 1U));
    const VFloatBits normal =
        hn::ShiftRight<13>(hn::Sub(hn::Add(magnitude, hn::Add(odd, hn::Set(d, 0xfffU))), hn::Set(d, 112U << 23)));
    // Below 2^-14 the result is a multiple of 2^-24, the last bit of a float32 in [0.5, 1): the addition rounds.
    const VFloat base = hn::Set(D(), 0.5F);
    const VFloatBits subnormal =
        hn::Sub(hn::BitCast(d, hn::Add(hn::BitCast(D(), magnitude), base)), hn::BitCast(d, base));
    const VFloatBits half = hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 113U << 23)), subnormal, normal);
    return hn::TruncateTo(DHalf(), hn::Or(half, sign));
  }

  static HWY_INLINE void widen(const Raw (&raw)[kRaws], V (&values)[kVectors]) {
    GRADSYNC_UNROLL
    for (std::size_t k = 0; k < kVectors; ++k) {
      values[k] = decode(raw[k]);
    }
  }

  static HWY_INLINE void round(V (&values)[kVectors], Raw (&raw)[kRaws]) {
    GRADSYNC_UNROLL
    for (std::size_t k = 0; k < kVectors; ++k) {
      raw[k] = encode(values[k]);
      values[k] = decode(raw[k]);
    }
  }
};

}  // namespace gradsync::device::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#endif
