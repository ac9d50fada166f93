#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/reduce_chunk.cpp"
// Includes this file once per vector target, so it comes before everything else; the order below matters too.
// clang-format off
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <hwy/cache_control.h>
#include "device/row_formats-inl.hpp"
#include "device/power_sums-inl.hpp"
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

/// The usual numbers of sources and destinations are constants of the loop; pointers then live in registers.
enum class Peers : std::uint8_t { OneToNone, TwoToTwo, Any };

/// Where the rows of a chunk are. The pointers are copies, because every store might change what the spans point to.
template <typename Row, Peers kPeers>
class WholeRows {
 public:
  using Stored = typename Row::Stored;

  explicit HWY_INLINE WholeRows(const ReduceChunk& chunk)
      : chunk_(chunk),
        first_(static_cast<const Stored*>(chunk.sources[0])),
        second_(kPeers == Peers::TwoToTwo ? static_cast<const Stored*>(chunk.sources[1]) : nullptr),
        first_to_(kPeers == Peers::TwoToTwo ? static_cast<Stored*>(chunk.destinations[0]) : nullptr),
        second_to_(kPeers == Peers::TwoToTwo ? static_cast<Stored*>(chunk.destinations[1]) : nullptr) {}

  HWY_INLINE std::size_t sources() const {
    return kPeers == Peers::OneToNone ? 1 : kPeers == Peers::TwoToTwo ? 2 : chunk_.sources.size();
  }

  HWY_INLINE const Stored* source(std::size_t s, std::size_t at) const {
    if constexpr (kPeers == Peers::Any) {
      return static_cast<const Stored*>(chunk_.sources[s]) + at;
    }
    return (s == 0 ? first_ : second_) + at;
  }

  /// Half formats compute for so long per byte that the hardware's prefetcher falls behind (measured; float32 gains
  /// nothing). A prefetch never faults, so it may run past the end.
  HWY_INLINE void prefetch(std::size_t at) const {
    if constexpr (sizeof(Stored) == 2 && kPeers != Peers::Any) {
      constexpr std::size_t kAhead = 2048 / sizeof(Stored);
      hwy::Prefetch(first_ + at + kAhead);  // a row is one cache line
      if constexpr (kPeers == Peers::TwoToTwo) {
        hwy::Prefetch(second_ + at + kAhead);
      }
    }
  }

  HWY_INLINE void write(const typename Row::Raw (&raw)[Row::kRaws], std::size_t at) const {
    if constexpr (kPeers == Peers::TwoToTwo) {
      Row::store(raw, first_to_ + at);
      Row::store(raw, second_to_ + at);
    } else if constexpr (kPeers == Peers::Any) {
      for (void* destination : chunk_.destinations) {
        Row::store(raw, static_cast<Stored*>(destination) + at);
      }
    }
  }

 private:
  const ReduceChunk& chunk_;
  const Stored* first_;
  const Stored* second_;
  Stored* first_to_;
  Stored* second_to_;
};

/// The last row of a chunk, shorter than 32. Padded with zeros, which add nothing to any sum. One buffer is enough,
/// because a source is read to its end before the next is asked for.
template <typename Row>
class PartialRow {
 public:
  using Stored = typename Row::Stored;

  PartialRow(const ReduceChunk& chunk, Stored* padded) : chunk_(chunk), padded_(padded) {}

  HWY_INLINE std::size_t sources() const { return chunk_.sources.size(); }

  HWY_INLINE const Stored* source(std::size_t s, std::size_t at) const {
    std::memcpy(padded_, static_cast<const Stored*>(chunk_.sources[s]) + at, (chunk_.count - at) * sizeof(Stored));
    return padded_;
  }

  HWY_INLINE void write(const typename Row::Raw (&raw)[Row::kRaws], std::size_t at) const {
    HWY_ALIGN Stored row[kRow];
    Row::store(raw, row);
    for (void* destination : chunk_.destinations) {
      std::memcpy(static_cast<Stored*>(destination) + at, row, (chunk_.count - at) * sizeof(Stored));
    }
  }

 private:
  const ReduceChunk& chunk_;
  Stored* padded_;
};

/// Out of line: rows that hold or become infinite or NaN. Leaves the rounded bits in `stored` and their values in
/// `values`.
template <typename Row>
HWY_NOINLINE void count_nonfinite_row(
    const ReduceChunk& chunk,
    std::size_t at,
    typename Row::Value* values,
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

/// `sums` and `largest` are references only into the caller that this is inlined into: a call that could see them
/// would force them into memory.
template <typename Row, PowerKind kPower, typename Rows>
HWY_INLINE void reduce_row(
    const ReduceChunk& chunk,
    const Rows& rows,
    std::size_t at,
    Division division,
    typename Row::V divisor,
    PowerSums<typename Row::Value>& sums,
    typename Row::VBits& largest,
    ChunkStats& stats
) {
  const typename Row::DBits bits;
  typename Row::V values[Row::kVectors];
  Row::load(rows.source(0, at), values);
  for (std::size_t s = 1; s < rows.sources(); ++s) {
    typename Row::V terms[Row::kVectors];
    Row::load(rows.source(s, at), terms);
    GRADSYNC_UNROLL
    for (std::size_t k = 0; k < Row::kVectors; ++k) {
      values[k] = hn::Add(values[k], terms[k]);
    }
  }
  if (division == Division::ByReciprocal) {
    GRADSYNC_UNROLL
    for (std::size_t k = 0; k < Row::kVectors; ++k) {
      values[k] = hn::Mul(values[k], divisor);
    }
  } else if (division == Division::True) {
    GRADSYNC_UNROLL
    for (std::size_t k = 0; k < Row::kVectors; ++k) {
      values[k] = hn::Div(values[k], divisor);
    }
  }

  typename Row::Raw raw[Row::kRaws];
  const auto magnitude = row_magnitude<Row>(values);
  if (HWY_LIKELY(hn::AllTrue(bits, hn::Lt(magnitude, hn::Set(bits, Row::kOverflow))))) {
    largest = hn::Max(largest, magnitude);
    Row::round(values, raw);
  } else {
    HWY_ALIGN typename Row::Value row_values[kRow];
    HWY_ALIGN typename Row::Stored row_stored[kRow] = {};
    spill_row<Row>(values, row_values);
    count_nonfinite_row<Row>(chunk, at, row_values, row_stored, stats);
    reload_row<Row>(row_values, values);
    Row::load_raw(row_stored, raw);
  }
  if constexpr (kPower != PowerKind::None) {
    GRADSYNC_UNROLL
    for (std::size_t k = 0; k < Row::kVectors; ++k) {
      add_powers<kPower>(values[k], k, sums);
    }
  }
  rows.write(raw, at);
}

/// The largest rounded magnitude: rounding keeps order, so the largest value before it is rounded once.
template <typename Row>
double maximum_of(typename Row::VBits magnitude) {
  HWY_ALIGN typename Row::Bits lanes[Row::kLanes];
  hn::StoreU(magnitude, typename Row::DBits(), lanes);
  typename Row::Bits largest = 0;
  for (const typename Row::Bits lane : lanes) {
    largest = lane > largest ? lane : largest;
  }
  const auto value = std::bit_cast<typename Row::Value>(largest);
  if constexpr (Row::kDType == plan::DType::BFloat16) {
    return bfloat16_to_float(float_to_bfloat16(value));
  } else if constexpr (Row::kDType == plan::DType::Float16) {
    return float16_to_float(float_to_float16(value));
  } else {
    return value;
  }
}

template <typename Row, Peers kPeers, PowerKind kPower>
ChunkStats reduce_rows(const ReduceChunk& chunk) {
  using Value = typename Row::Value;
  const typename Row::D d;
  const auto divisor = static_cast<Value>(chunk.divisor);
  const Value reciprocal = Value{1} / divisor;
  // Dividing by a power of two is multiplying by its inverse, bit for bit, when the inverse is a normal number.
  int exponent = 0;
  const bool exact = std::frexp(divisor, &exponent) == Value{0.5} && std::isnormal(reciprocal);
  const Division division = divisor == Value{1} ? Division::None : exact ? Division::ByReciprocal : Division::True;
  const auto by = hn::Set(d, exact ? reciprocal : divisor);

  ChunkStats stats;
  auto largest = hn::Zero(typename Row::DBits());
  PowerSums<Value> sums;
  clear(sums);
  const WholeRows<Row, kPeers> whole(chunk);
  const std::size_t count = chunk.count;
  std::size_t at = 0;
  for (; at + kRow <= count; at += kRow) {
    whole.prefetch(at);
    reduce_row<Row, kPower>(chunk, whole, at, division, by, sums, largest, stats);
  }
  if (at < count) {
    HWY_ALIGN typename Row::Stored padded[kRow] = {};
    reduce_row<Row, kPower>(chunk, PartialRow<Row>(chunk, padded), at, division, by, sums, largest, stats);
  }

  stats.power_sum = total<Row>(sums);
  const double maximum = maximum_of<Row>(largest);
  stats.maximum = maximum > stats.maximum ? maximum : stats.maximum;
  return stats;
}

template <typename Row, PowerKind kPower>
ChunkStats reduce_by_peers(const ReduceChunk& chunk) {
  if (chunk.sources.size() == 1 && chunk.destinations.empty()) {
    return reduce_rows<Row, Peers::OneToNone, kPower>(chunk);
  }
  if (chunk.sources.size() == 2 && chunk.destinations.size() == 2) {
    return reduce_rows<Row, Peers::TwoToTwo, kPower>(chunk);
  }
  return reduce_rows<Row, Peers::Any, kPower>(chunk);
}

template <typename Row>
ChunkStats reduce_as(const ReduceChunk& chunk) {
  switch (chunk.power) {
    case PowerKind::Two:
      return reduce_by_peers<Row, PowerKind::Two>(chunk);
    case PowerKind::One:
      return reduce_rows<Row, Peers::Any, PowerKind::One>(chunk);
    default:
      return reduce_rows<Row, Peers::Any, PowerKind::None>(chunk);
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
