// Rows of 32 elements as vectors, per dtype: load, round and store. Included once per vector target (foreach_target.h),
// hence no `#pragma once`. Every format works on `Value` lanes (float, or double for float64) and knows the smallest
// magnitude, as bits, that will not be finite once rounded: such rows leave the fast path.

#if defined(GRADSYNC_DEVICE_ROW_FORMATS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADSYNC_DEVICE_ROW_FORMATS_INL
#undef GRADSYNC_DEVICE_ROW_FORMATS_INL
#else
#define GRADSYNC_DEVICE_ROW_FORMATS_INL
#endif

#include "device/chunk_math.hpp"
#include "device/half.hpp"

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

HWY_BEFORE_NAMESPACE();

namespace gradsync::device::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using DFloat = hn::ScalableTag<float>;
using DDouble = hn::ScalableTag<double>;
using DHalf = hn::Rebind<std::uint16_t, DFloat>;
using DFloatBits = hn::RebindToUnsigned<DFloat>;
using VFloat = hn::Vec<DFloat>;
using VDouble = hn::Vec<DDouble>;
using VHalf = hn::Vec<DHalf>;
using VFloatBits = hn::Vec<DFloatBits>;

inline constexpr std::size_t kRow = kAccumulators;

// The loops over the vectors of a row have constant bounds; unrolled, rows and accumulators live in registers.
#define GRADSYNC_UNROLL HWY_UNROLL(32)

/// A row of `D` lanes: how many vectors hold 32 elements.
template <typename D_>
struct RowShape {
  using D = D_;
  using Value = hn::TFromD<D>;
  using V = hn::Vec<D>;
  using DBits = hn::RebindToSigned<D>;
  using VBits = hn::Vec<DBits>;
  using Bits = hn::TFromD<DBits>;
  static constexpr std::size_t kLanes = hn::MaxLanes(D());
  static constexpr std::size_t kVectors = kRow / kLanes;
};

/// float32 and float64: stored as they are computed with.
template <typename D_, plan::DType kType, hn::TFromD<hn::RebindToSigned<D_>> kInfinity>
struct PlainRow : RowShape<D_> {
  using typename RowShape<D_>::D;
  using typename RowShape<D_>::V;
  using RowShape<D_>::kLanes;
  using RowShape<D_>::kVectors;
  using Stored = hn::TFromD<D>;
  using Raw = V;
  static constexpr plan::DType kDType = kType;
  static constexpr std::size_t kRaws = kVectors;
  static constexpr auto kOverflow = kInfinity;

  /// Which element of the row a lane of a vector holds.
  static constexpr std::size_t element(std::size_t vector, std::size_t lane) { return vector * kLanes + lane; }

  static HWY_INLINE void load(const Stored* from, V (&values)[kVectors]) {
    GRADSYNC_UNROLL
    for (std::size_t k = 0; k < kVectors; ++k) {
      values[k] = hn::LoadU(D(), from + k * kLanes);
    }
  }

  static HWY_INLINE void round(V (&values)[kVectors], Raw (&raw)[kRaws]) {
    GRADSYNC_UNROLL
    for (std::size_t k = 0; k < kVectors; ++k) {
      raw[k] = values[k];
    }
  }

  static HWY_INLINE void load_raw(const Stored* from, Raw (&raw)[kRaws]) { load(from, raw); }

  static HWY_INLINE void store(const Raw (&raw)[kRaws], Stored* to) {
    GRADSYNC_UNROLL
    for (std::size_t k = 0; k < kRaws; ++k) {
      hn::StoreU(raw[k], D(), to + k * kLanes);
    }
  }
};

using Float32Row = PlainRow<DFloat, plan::DType::Float32, 0x7f80'0000>;
using Float64Row = PlainRow<DDouble, plan::DType::Float64, 0x7ff0'0000'0000'0000>;

/// float32 → the bits of a bfloat16 in the upper half, still with what was cut off in the lower.
HWY_INLINE VFloatBits round_bfloat16(VFloat value) {
  const DFloatBits d;
  const VFloatBits bits = hn::BitCast(d, value);
  const VFloatBits odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1U));
  return hn::Add(hn::Add(bits, hn::Set(d, 0x7fffU)), odd);
}

// In both half formats `round` never sees a NaN or a value beyond the overflow bound.

#if HWY_TARGET == HWY_SCALAR

struct BFloat16Row : RowShape<DFloat> {
  using Stored = std::uint16_t;
  using Raw = VHalf;
  static constexpr plan::DType kDType = plan::DType::BFloat16;
  static constexpr std::size_t kRaws = kVectors;
  static constexpr Bits kOverflow = kBFloat16Overflow;

  static constexpr std::size_t element(std::size_t vector, std::size_t lane) { return vector * kLanes + lane; }

  static HWY_INLINE void load(const Stored* from, V (&values)[kVectors]) {
    for (std::size_t k = 0; k < kVectors; ++k) {
      values[k] =
          hn::BitCast(D(), hn::ShiftLeft<16>(hn::PromoteTo(DFloatBits(), hn::LoadU(DHalf(), from + k * kLanes))));
    }
  }

  static HWY_INLINE void round(V (&values)[kVectors], Raw (&raw)[kRaws]) {
    for (std::size_t k = 0; k < kVectors; ++k) {
      const VFloatBits half = hn::ShiftRight<16>(round_bfloat16(values[k]));
      values[k] = hn::BitCast(D(), hn::ShiftLeft<16>(half));
      raw[k] = hn::TruncateTo(DHalf(), half);
    }
  }

  static HWY_INLINE void load_raw(const Stored* from, Raw (&raw)[kRaws]) {
    for (std::size_t k = 0; k < kRaws; ++k) {
      raw[k] = hn::LoadU(DHalf(), from + k * kLanes);
    }
  }

  static HWY_INLINE void store(const Raw (&raw)[kRaws], Stored* to) {
    for (std::size_t k = 0; k < kRaws; ++k) {
      hn::StoreU(raw[k], DHalf(), to + k * kLanes);
    }
  }
};

#else

/// Elements in pairs: of every 32 bits the lower half is an even element, the upper an odd one (little-endian), so that
/// no lane ever moves. The accumulators are permuted likewise and put in order once per chunk.
struct BFloat16Row : RowShape<DFloat> {
  using Stored = std::uint16_t;
  using DPairs = hn::Repartition<std::uint16_t, DFloat>;
  using Raw = hn::Vec<DPairs>;
  static constexpr plan::DType kDType = plan::DType::BFloat16;
  static constexpr std::size_t kRaws = kVectors / 2;
  static constexpr Bits kOverflow = kBFloat16Overflow;

  static constexpr std::size_t element(std::size_t vector, std::size_t lane) {
    return (vector / 2) * (2 * kLanes) + 2 * lane + vector % 2;
  }

  static HWY_INLINE void load(const Stored* from, V (&values)[kVectors]) {
    const DFloatBits d;
    GRADSYNC_UNROLL
    for (std::size_t k = 0; k < kRaws; ++k) {
      const VFloatBits pairs = hn::BitCast(d, hn::LoadU(DPairs(), from + 2 * k * kLanes));
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

  static HWY_INLINE void load_raw(const Stored* from, Raw (&raw)[kRaws]) {
    GRADSYNC_UNROLL
    for (std::size_t k = 0; k < kRaws; ++k) {
      raw[k] = hn::LoadU(DPairs(), from + 2 * k * kLanes);
    }
  }

  static HWY_INLINE void store(const Raw (&raw)[kRaws], Stored* to) {
    GRADSYNC_UNROLL
    for (std::size_t k = 0; k < kRaws; ++k) {
      hn::StoreU(raw[k], DPairs(), to + 2 * k * kLanes);
    }
  }
};

#endif

struct Float16Row : RowShape<DFloat> {
  using Stored = std::uint16_t;
  using Raw = VHalf;
  static constexpr plan::DType kDType = plan::DType::Float16;
  static constexpr std::size_t kRaws = kVectors;
  static constexpr Bits kOverflow = kFloat16Overflow;

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
    const VFloatBits nonfinite = hn::Or(magnitude, hn::Set(d, kFloatInfinity));
    VFloatBits bits = hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 1U << 23)), hn::BitCast(d, subnormal), normal);
    bits = hn::IfThenElse(hn::Gt(magnitude, hn::Set(d, (31U << 23) - 1U)), nonfinite, bits);
    return hn::BitCast(D(), hn::Or(bits, sign));
#endif
  }

  static HWY_INLINE VHalf encode(VFloat value) {
    const DFloatBits d;
    const VFloatBits bits = hn::BitCast(d, value);
    const VFloatBits sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 0x8000U));
    const VFloatBits magnitude = hn::And(bits, hn::Set(d, kFloatMagnitude));
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

  static HWY_INLINE void load(const Stored* from, V (&values)[kVectors]) {
    GRADSYNC_UNROLL
    for (std::size_t k = 0; k < kVectors; ++k) {
      values[k] = decode(hn::LoadU(DHalf(), from + k * kLanes));
    }
  }

  static HWY_INLINE void round(V (&values)[kVectors], Raw (&raw)[kRaws]) {
    GRADSYNC_UNROLL
    for (std::size_t k = 0; k < kVectors; ++k) {
      raw[k] = encode(values[k]);
      values[k] = decode(raw[k]);
    }
  }

  static HWY_INLINE void load_raw(const Stored* from, Raw (&raw)[kRaws]) {
    GRADSYNC_UNROLL
    for (std::size_t k = 0; k < kRaws; ++k) {
      raw[k] = hn::LoadU(DHalf(), from + k * kLanes);
    }
  }

  static HWY_INLINE void store(const Raw (&raw)[kRaws], Stored* to) {
    GRADSYNC_UNROLL
    for (std::size_t k = 0; k < kRaws; ++k) {
      hn::StoreU(raw[k], DHalf(), to + k * kLanes);
    }
  }
};

/// The largest magnitude of each lane over a row, as signed bits: ordered like the values, NaN above infinity.
template <typename Row>
HWY_INLINE typename Row::VBits row_magnitude(const typename Row::V (&values)[Row::kVectors]) {
  const typename Row::DBits d;
  auto magnitude = hn::BitCast(d, hn::Abs(values[0]));
  GRADSYNC_UNROLL
  for (std::size_t k = 1; k < Row::kVectors; ++k) {
    magnitude = hn::Max(magnitude, hn::BitCast(d, hn::Abs(values[k])));
  }
  return magnitude;
}

/// A row's values between vectors and memory in the order of its elements. Slow: only where the fast path was left.
template <typename Row>
HWY_INLINE void spill_row(const typename Row::V (&values)[Row::kVectors], typename Row::Value* elements) {
  HWY_ALIGN typename Row::Value lanes[Row::kLanes];
  for (std::size_t k = 0; k < Row::kVectors; ++k) {
    hn::StoreU(values[k], typename Row::D(), lanes);
    for (std::size_t lane = 0; lane < Row::kLanes; ++lane) {
      elements[Row::element(k, lane)] = lanes[lane];
    }
  }
}

template <typename Row>
HWY_INLINE void reload_row(const typename Row::Value* elements, typename Row::V (&values)[Row::kVectors]) {
  HWY_ALIGN typename Row::Value lanes[Row::kLanes];
  for (std::size_t k = 0; k < Row::kVectors; ++k) {
    for (std::size_t lane = 0; lane < Row::kLanes; ++lane) {
      lanes[lane] = elements[Row::element(k, lane)];
    }
    values[k] = hn::LoadU(typename Row::D(), lanes);
  }
}

}  // namespace gradsync::device::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#endif
