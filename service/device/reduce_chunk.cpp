#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/reduce_chunk.cpp"
// Includes this file once per vector target, so it comes before everything else; the order below matters too.
// clang-format off
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "device/row_formats-inl.hpp"
// clang-format on

#include "device/chunk_math.hpp"
#include "device/chunk_reference.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>

HWY_BEFORE_NAMESPACE();

namespace gradsync::device::HWY_NAMESPACE {

namespace {

enum class Division : std::uint8_t { None, ByReciprocal, True };

inline constexpr std::size_t kDoubleLanes = hn::MaxLanes(DDouble());
inline constexpr std::size_t kSumVectors = kAccumulators / kDoubleLanes;

template <typename Row>
struct Running {
  VDouble sums[kSumVectors];
  typename RowShape<Row>::VBits magnitude;
  ChunkStats stats;
};

template <PowerKind kPower>
HWY_INLINE VDouble power_of(VDouble value) {
  if constexpr (kPower == PowerKind::Two) {
    return hn::Mul(value, value);
  } else {
    return hn::Abs(value);
  }
}

/// Adds the powers of vector `k` of a row of floats.
template <PowerKind kPower>
HWY_INLINE void add_powers(VFloat value, std::size_t k, VDouble (&sums)[kSumVectors]) {
  const DDouble d;
#if HWY_TARGET == HWY_SCALAR
  sums[k] = hn::Add(sums[k], power_of<kPower>(hn::PromoteTo(d, value)));
#else
  const hn::Half<DFloat> half;
  const VDouble low = hn::PromoteTo(d, hn::LowerHalf(half, value));
  const VDouble high = hn::PromoteTo(d, hn::UpperHalf(half, value));
  sums[2 * k] = hn::Add(sums[2 * k], power_of<kPower>(low));
  sums[2 * k + 1] = hn::Add(sums[2 * k + 1], power_of<kPower>(high));
#endif
}

template <PowerKind kPower>
HWY_INLINE void add_powers(VDouble value, std::size_t k, VDouble (&sums)[kSumVectors]) {
  sums[k] = hn::Add(sums[k], power_of<kPower>(value));
}

/// The rows at one position of all sources and destinations.
template <typename Row>
struct WholeRow {
  using Stored = typename Row::Stored;
  const ReduceChunk& chunk;
  std::size_t at;

  HWY_INLINE const Stored* source(std::size_t s) const { return static_cast<const Stored*>(chunk.sources[s]) + at; }

  HWY_INLINE void write(const typename Row::Raw (&raw)[RowShape<Row>::kVectors]) const {
    for (void* destination : chunk.destinations) {
      Stored* const to = static_cast<Stored*>(destination) + at;
      GRADSYNC_UNROLL
      for (std::size_t k = 0; k < RowShape<Row>::kVectors; ++k) {
        Row::store(raw[k], to + k * RowShape<Row>::kLanes);
      }
    }
  }
};

/// The last row of a chunk, shorter than 32. Padded with zeros, which add nothing to any sum. One buffer is enough,
/// because a source is read to its end before the next is asked for.
template <typename Row>
struct PartialRow {
  using Stored = typename Row::Stored;
  const ReduceChunk& chunk;
  std::size_t at;
  Stored* padded;

  HWY_INLINE const Stored* source(std::size_t s) const {
    std::memcpy(padded, static_cast<const Stored*>(chunk.sources[s]) + at, (chunk.count - at) * sizeof(Stored));
    return padded;
  }

  HWY_INLINE void write(const typename Row::Raw (&raw)[RowShape<Row>::kVectors]) const {
    HWY_ALIGN Stored row[kRow];
    GRADSYNC_UNROLL
    for (std::size_t k = 0; k < RowShape<Row>::kVectors; ++k) {
      Row::store(raw[k], row + k * RowShape<Row>::kLanes);
    }
    for (void* destination : chunk.destinations) {
      std::memcpy(static_cast<Stored*>(destination) + at, row, (chunk.count - at) * sizeof(Stored));
    }
  }
};

/// Out of line: rows that hold or become infinite or NaN. Leaves the rounded bits in `stored` and their values in
/// `values`.
template <typename Row>
HWY_NOINLINE void count_nonfinite_row(
    const ReduceChunk& chunk,
    std::size_t at,
    hn::TFromD<typename Row::D>* values,
    typename Row::Stored* stored,
    ChunkStats& stats
) {
  const std::size_t length = chunk.count - at < kRow ? chunk.count - at : kRow;
  if constexpr (Row::kDType == plan::DType::Float64) {
    finish_nonfinite_row(values, length, stored, stats);
  } else {
    finish_nonfinite_row(Row::kDType, values, length, stored, stats);
  }
  if (chunk.source_nonfinite != nullptr) {
    for (std::size_t s = 0; s < chunk.sources.size(); ++s) {
      const auto* source = static_cast<const typename Row::Stored*>(chunk.sources[s]) + at;
      chunk.source_nonfinite[s] += count_nonfinite(Row::kDType, source, length);
    }
  }
}

HWY_INLINE VFloat load_raw(const float* from, VFloat) { return hn::LoadU(DFloat(), from); }

HWY_INLINE VDouble load_raw(const double* from, VDouble) { return hn::LoadU(DDouble(), from); }

HWY_INLINE VHalf load_raw(const std::uint16_t* from, VHalf) { return hn::LoadU(DHalf(), from); }

template <typename Row, std::size_t kSources, PowerKind kPower, typename Rows>
HWY_INLINE void reduce_row(
    const Rows& rows, Division division, typename RowShape<Row>::V divisor, Running<Row>& running
) {
  using Shape = RowShape<Row>;
  const typename Shape::DBits bits;
  const std::size_t sources = kSources != 0 ? kSources : rows.chunk.sources.size();

  typename Shape::V values[Shape::kVectors];
  const typename Row::Stored* first = rows.source(0);
  GRADSYNC_UNROLL
  for (std::size_t k = 0; k < Shape::kVectors; ++k) {
    values[k] = Row::load(first + k * Shape::kLanes);
  }
  for (std::size_t s = 1; s < sources; ++s) {
    const typename Row::Stored* source = rows.source(s);
    GRADSYNC_UNROLL
    for (std::size_t k = 0; k < Shape::kVectors; ++k) {
      values[k] = hn::Add(values[k], Row::load(source + k * Shape::kLanes));
    }
  }
  if (division == Division::ByReciprocal) {
    GRADSYNC_UNROLL
    for (std::size_t k = 0; k < Shape::kVectors; ++k) {
      values[k] = hn::Mul(values[k], divisor);
    }
  } else if (division == Division::True) {
    GRADSYNC_UNROLL
    for (std::size_t k = 0; k < Shape::kVectors; ++k) {
      values[k] = hn::Div(values[k], divisor);
    }
  }

  typename Row::Raw raw[Shape::kVectors];
  const auto magnitude = row_magnitude<Row>(values);
  if (HWY_LIKELY(hn::AllTrue(bits, hn::Lt(magnitude, hn::Set(bits, Row::kOverflow))))) {
    running.magnitude = hn::Max(running.magnitude, magnitude);
    GRADSYNC_UNROLL
    for (std::size_t k = 0; k < Shape::kVectors; ++k) {
      raw[k] = Row::round(values[k]);
    }
  } else {
    HWY_ALIGN typename Shape::Value row_values[kRow];
    HWY_ALIGN typename Row::Stored row_stored[kRow] = {};
    GRADSYNC_UNROLL
    for (std::size_t k = 0; k < Shape::kVectors; ++k) {
      hn::StoreU(values[k], typename Shape::D(), row_values + k * Shape::kLanes);
    }
    count_nonfinite_row<Row>(rows.chunk, rows.at, row_values, row_stored, running.stats);
    GRADSYNC_UNROLL
    for (std::size_t k = 0; k < Shape::kVectors; ++k) {
      values[k] = hn::LoadU(typename Shape::D(), row_values + k * Shape::kLanes);
      raw[k] = load_raw(row_stored + k * Shape::kLanes, typename Row::Raw());
    }
  }
  if constexpr (kPower != PowerKind::None) {
    GRADSYNC_UNROLL
    for (std::size_t k = 0; k < Shape::kVectors; ++k) {
      add_powers<kPower>(values[k], k, running.sums);
    }
  }
  rows.write(raw);
}

/// The largest rounded magnitude: rounding keeps order, so the largest value before it is rounded once.
template <typename Row>
double maximum_of(typename RowShape<Row>::VBits magnitude) {
  using Shape = RowShape<Row>;
  HWY_ALIGN typename Row::Bits lanes[Shape::kLanes];
  hn::StoreU(magnitude, typename Shape::DBits(), lanes);
  typename Row::Bits largest = 0;
  for (const typename Row::Bits lane : lanes) {
    largest = lane > largest ? lane : largest;
  }
  const auto value = std::bit_cast<typename Shape::Value>(largest);
  if constexpr (Row::kDType == plan::DType::BFloat16) {
    return bfloat16_to_float(float_to_bfloat16(value));
  } else if constexpr (Row::kDType == plan::DType::Float16) {
    return float16_to_float(float_to_float16(value));
  } else {
    return value;
  }
}

template <typename Row, std::size_t kSources, PowerKind kPower>
ChunkStats reduce_rows(const ReduceChunk& chunk) {
  using Shape = RowShape<Row>;
  using Value = typename Shape::Value;
  const typename Shape::D d;
  const auto divisor = static_cast<Value>(chunk.divisor);
  const Value reciprocal = Value{1} / divisor;
  // Dividing by a power of two is multiplying by its inverse, bit for bit, when the inverse is a normal number.
  int exponent = 0;
  const bool exact = std::frexp(divisor, &exponent) == Value{0.5} && std::isnormal(reciprocal);
  const Division division = divisor == Value{1} ? Division::None : exact ? Division::ByReciprocal : Division::True;
  const auto by = hn::Set(d, exact ? reciprocal : divisor);

  Running<Row> running;
  running.magnitude = hn::Zero(typename Shape::DBits());
  GRADSYNC_UNROLL
  for (std::size_t k = 0; k < kSumVectors; ++k) {
    running.sums[k] = hn::Zero(DDouble());
  }
  std::size_t at = 0;
  for (; at + kRow <= chunk.count; at += kRow) {
    reduce_row<Row, kSources, kPower>(WholeRow<Row>{chunk, at}, division, by, running);
  }
  if (at < chunk.count) {
    HWY_ALIGN typename Row::Stored padded[kRow] = {};
    reduce_row<Row, kSources, kPower>(PartialRow<Row>{chunk, at, padded}, division, by, running);
  }

  std::array<double, kAccumulators> sums;
  GRADSYNC_UNROLL
  for (std::size_t k = 0; k < kSumVectors; ++k) {
    hn::StoreU(running.sums[k], DDouble(), sums.data() + k * kDoubleLanes);
  }
  running.stats.power_sum = combine_accumulators(sums);
  const double maximum = maximum_of<Row>(running.magnitude);
  running.stats.maximum = maximum > running.stats.maximum ? maximum : running.stats.maximum;
  return running.stats;
}

template <typename Row, PowerKind kPower>
ChunkStats reduce_by_sources(const ReduceChunk& chunk) {
  switch (chunk.sources.size()) {
    case 1:
      return reduce_rows<Row, 1, kPower>(chunk);
    case 2:
      return reduce_rows<Row, 2, kPower>(chunk);
    default:
      return reduce_rows<Row, 0, kPower>(chunk);
  }
}

template <typename Row>
ChunkStats reduce_as(const ReduceChunk& chunk) {
  switch (chunk.power) {
    case PowerKind::Two:
      return reduce_by_sources<Row, PowerKind::Two>(chunk);
    case PowerKind::One:
      return reduce_rows<Row, 0, PowerKind::One>(chunk);
    default:
      return reduce_rows<Row, 0, PowerKind::None>(chunk);
  }
}

}  // namespace

ChunkStats reduce_any(const ReduceChunk& chunk) {
  switch (chunk.dtype) {
    case plan::DType::Float32:
      return reduce_as<Float32Row>(chunk);
    case plan::DType::BFloat16:
      return reduce_as<BFloat16Row>(chunk);
    case plan::DType::Float16:
      return reduce_as<Float16Row>(chunk);
    default:
      return reduce_as<Float64Row>(chunk);
  }
}

}  // namespace gradsync::device::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace gradsync::device {

HWY_EXPORT(reduce_any);

ChunkStats reduce_chunk(const ReduceChunk& chunk) { return HWY_DYNAMIC_DISPATCH(reduce_any)(chunk); }

}  // namespace gradsync::device

#endif
