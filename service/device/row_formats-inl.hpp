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

struct Float32Row {
  using Stored = float;
  using D = DFloat;
  using Bits = std::int32_t;
  using Raw = VFloat;
  static constexpr plan::DType kDType = plan::DType::Float32;
  static constexpr Bits kOverflow = kFloatInfinity;

  static HWY_INLINE VFloat load(const Stored* from) { return hn::LoadU(D(), from); }

  static HWY_INLINE Raw round(VFloat& value) { return value; }

  static HWY_INLINE void store(Raw raw, Stored* to) { hn::StoreU(raw, D(), to); }
};

struct Float64Row {
  using Stored = double;
  using D = DDouble;
  using Bits = std::int64_t;
  using Raw = VDouble;
  static constexpr plan::DType kDType = plan::DType::Float64;
  static constexpr Bits kOverflow = 0x7ff0'0000'0000'0000;

  static HWY_INLINE VDouble load(const Stored* from) { return hn::LoadU(D(), from); }

  static HWY_INLINE Raw round(VDouble& value) { return value; }

  static HWY_INLINE void store(Raw raw, Stored* to) { hn::StoreU(raw, D(), to); }
};

/// Values of a half format are never NaN and never beyond its overflow bound when `round` sees them.
struct BFloat16Row {
  using Stored = std::uint16_t;
  using D = DFloat;
  using Bits = std::int32_t;
  using Raw = VHalf;
  static constexpr plan::DType kDType = plan::DType::BFloat16;
  static constexpr Bits kOverflow = kBFloat16Overflow;

  static HWY_INLINE VFloat load(const Stored* from) {
    const DFloatBits d;
    return hn::BitCast(D(), hn::ShiftLeft<16>(hn::PromoteTo(d, hn::LoadU(DHalf(), from))));
  }

  static HWY_INLINE Raw round(VFloat& value) {
    const DFloatBits d;
    const VFloatBits bits = hn::BitCast(d, value);
    const VFloatBits odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1U));
    const VFloatBits half = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(d, 0x7fffU))));
    value = hn::BitCast(D(), hn::ShiftLeft<16>(half));
    return hn::TruncateTo(DHalf(), half);
  }

  static HWY_INLINE void store(Raw raw, Stored* to) { hn::StoreU(raw, DHalf(), to); }
};

struct Float16Row {
  using Stored = std::uint16_t;
  using D = DFloat;
  using Bits = std::int32_t;
  using Raw = VHalf;
  static constexpr plan::DType kDType = plan::DType::Float16;
  static constexpr Bits kOverflow = kFloat16Overflow;

  static HWY_INLINE VFloat decode(VFloatBits half) {
    const DFloatBits d;
    const VFloatBits sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(d, 0x8000U)));
    const VFloatBits magnitude = hn::ShiftLeft<13>(hn::And(half, hn::Set(d, 0x7fffU)));
    const VFloatBits normal = hn::Add(magnitude, hn::Set(d, 112U << 23));
    // Subnormal: give the mantissa the exponent 2^-14 and take 2^-14 away again; both steps are exact.
    const VFloatBits lowest = hn::Set(d, 113U << 23);
    const VFloat subnormal = hn::Sub(hn::BitCast(D(), hn::Add(magnitude, lowest)), hn::BitCast(D(), lowest));
    const VFloatBits nonfinite = hn::Or(magnitude, hn::Set(d, kFloatInfinity));
    VFloatBits bits = hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 1U << 23)), hn::BitCast(d, subnormal), normal);
    bits = hn::IfThenElse(hn::Gt(magnitude, hn::Set(d, (31U << 23) - 1U)), nonfinite, bits);
    return hn::BitCast(D(), hn::Or(bits, sign));
  }

  static HWY_INLINE VFloat load(const Stored* from) {
    return decode(hn::PromoteTo(DFloatBits(), hn::LoadU(DHalf(), from)));
  }

  static HWY_INLINE Raw round(VFloat& value) {
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
    const VFloatBits half = hn::Or(hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 113U << 23)), subnormal, normal), sign);
    value = decode(half);
    return hn::TruncateTo(DHalf(), half);
  }

  static HWY_INLINE void store(Raw raw, Stored* to) { hn::StoreU(raw, DHalf(), to); }
};

template <typename Row>
struct RowShape {
  using D = typename Row::D;
  using Value = hn::TFromD<D>;
  using V = hn::Vec<D>;
  using DBits = hn::RebindToSigned<D>;
  using VBits = hn::Vec<DBits>;
  static constexpr std::size_t kLanes = hn::MaxLanes(D());
  static constexpr std::size_t kVectors = kRow / kLanes;
};

/// The largest magnitude of each lane over a row, as signed bits: ordered like the values, NaN above infinity.
template <typename Row>
HWY_INLINE auto row_magnitude(const typename RowShape<Row>::V (&values)[RowShape<Row>::kVectors]) {
  const typename RowShape<Row>::DBits d;
  auto magnitude = hn::BitCast(d, hn::Abs(values[0]));
  GRADSYNC_UNROLL
  for (std::size_t k = 1; k < RowShape<Row>::kVectors; ++k) {
    magnitude = hn::Max(magnitude, hn::BitCast(d, hn::Abs(values[k])));
  }
  return magnitude;
}

}  // namespace gradsync::device::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#endif
