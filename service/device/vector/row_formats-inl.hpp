// Rows of 32 elements as vectors, per dtype: load, widen, round and store. Included once per vector target
// (foreach_target.h), hence no `#pragma once`. Every format works on `Value` lanes (float, or double for float64) and
// knows the smallest magnitude, as bits, that will not be finite once rounded: such rows leave the fast path.

#if defined(GRADSYNC_DEVICE_ROW_FORMATS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADSYNC_DEVICE_ROW_FORMATS_INL
#undef GRADSYNC_DEVICE_ROW_FORMATS_INL
#else
#define GRADSYNC_DEVICE_ROW_FORMATS_INL
#endif

#include "device/math/chunk_math.hpp"

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

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

/// Whether loads and stores of a part of a vector, of any width of lanes, are instructions.
inline constexpr bool kHasMasks = HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3;

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
  using DRaw = D;
  using Raw = V;
  static constexpr plan::DType kDType = kType;
  static constexpr std::size_t kRaws = kVectors;
  static constexpr auto kOverflow = kInfinity;

  /// Returns the element of the row that a lane of a vector holds.
  static constexpr std::size_t element(std::size_t vector, std::size_t lane) { return vector * kLanes + lane; }

  static HWY_INLINE void widen(const Raw (&raw)[kRaws], V (&values)[kVectors]) {
    GRADSYNC_UNROLL
    for (std::size_t k = 0; k < kVectors; ++k) {
      values[k] = raw[k];
    }
  }

  static HWY_INLINE void round(V (&values)[kVectors], Raw (&raw)[kRaws]) { widen(values, raw); }
};

using Float32Row = PlainRow<DFloat, plan::DType::Float32, 0x7f80'0000>;
using Float64Row = PlainRow<DDouble, plan::DType::Float64, 0x7ff0'0000'0000'0000>;

/// The bits of a row, as they are stored.
template <typename Row>
HWY_INLINE void load_raw(const typename Row::Stored* from, typename Row::Raw (&raw)[Row::kRaws]) {
  GRADSYNC_UNROLL
  for (std::size_t k = 0; k < Row::kRaws; ++k) {
    raw[k] = hn::LoadU(typename Row::DRaw(), from + k * (kRow / Row::kRaws));
  }
}

template <typename Row>
HWY_INLINE void store_row(const typename Row::Raw (&raw)[Row::kRaws], typename Row::Stored* to) {
  GRADSYNC_UNROLL
  for (std::size_t k = 0; k < Row::kRaws; ++k) {
    hn::StoreU(raw[k], typename Row::DRaw(), to + k * (kRow / Row::kRaws));
  }
}

/// Whether a vector of a row is no shorter than the shortest store past the cache.
template <typename Row>
inline constexpr bool kStreams = kRow / Row::kRaws * sizeof(typename Row::Stored) >= HWY_STREAM_MULTIPLE;

inline constexpr std::size_t kStreamAlignment = 64;  ///< a cache line, and the longest vector

/// Past the cache, to an aligned place.
template <typename Row>
HWY_INLINE void stream_row(const typename Row::Raw (&raw)[Row::kRaws], typename Row::Stored* to) {
  GRADSYNC_UNROLL
  for (std::size_t k = 0; k < Row::kRaws; ++k) {
    hn::Stream(raw[k], typename Row::DRaw(), to + k * (kRow / Row::kRaws));
  }
}

template <typename Row>
HWY_INLINE void load_row(const typename Row::Stored* from, typename Row::V (&values)[Row::kVectors]) {
  typename Row::Raw raw[Row::kRaws];
  load_raw<Row>(from, raw);
  Row::widen(raw, values);
}

/// The first `length` < 32 elements of a row, the others zero. Nothing behind them is touched, so that the row may be
/// the last one of its memory.
template <typename Row>
HWY_INLINE void load_first(
    const typename Row::Stored* from, std::size_t length, typename Row::V (&values)[Row::kVectors]
) {
  if constexpr (kHasMasks) {
    const typename Row::DRaw d;
    constexpr std::size_t kLanes = kRow / Row::kRaws;
    typename Row::Raw raw[Row::kRaws];
    GRADSYNC_UNROLL
    for (std::size_t k = 0; k < Row::kRaws; ++k) {
      const std::size_t left = length > k * kLanes ? length - k * kLanes : 0;
      raw[k] = hn::MaskedLoad(hn::FirstN(d, left), d, from + k * kLanes);
    }
    Row::widen(raw, values);
  } else {
    HWY_ALIGN typename Row::Stored padded[kRow] = {};
    std::memcpy(padded, from, length * sizeof(typename Row::Stored));
    load_row<Row>(padded, values);
  }
}

template <typename Row>
HWY_INLINE void store_first(const typename Row::Raw (&raw)[Row::kRaws], std::size_t length, typename Row::Stored* to) {
  if constexpr (kHasMasks) {
    const typename Row::DRaw d;
    constexpr std::size_t kLanes = kRow / Row::kRaws;
    GRADSYNC_UNROLL
    for (std::size_t k = 0; k < Row::kRaws; ++k) {
      const std::size_t left = length > k * kLanes ? length - k * kLanes : 0;
      hn::BlendedStore(raw[k], hn::FirstN(d, left), d, to + k * kLanes);
    }
  } else {
    HWY_ALIGN typename Row::Stored row[kRow];
    store_row<Row>(raw, row);
    std::memcpy(to, row, length * sizeof(typename Row::Stored));
  }
}

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
