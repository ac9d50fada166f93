// The reduction of a chunk whose gradients have one format. Included once per vector target (foreach_target.h), hence
// no
// `#pragma once`. Each format has a file of its own, because the compiler takes long for each.

#if defined(GRADSYNC_DEVICE_REDUCE_ROWS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADSYNC_DEVICE_REDUCE_ROWS_INL
#undef GRADSYNC_DEVICE_REDUCE_ROWS_INL
#else
#define GRADSYNC_DEVICE_REDUCE_ROWS_INL
#endif

#include "device/math/chunk_math.hpp"
#include "device/math/chunk_reference.hpp"
// The order below matters.
// clang-format off
#include "device/vector/row_formats-inl.hpp"
#include "device/vector/half_rows-inl.hpp"
#include "device/vector/power_sums-inl.hpp"
#include "device/vector/chunk_rows-inl.hpp"
// clang-format on

#include <bit>
#include <cmath>

HWY_BEFORE_NAMESPACE();

namespace gradsync::device::HWY_NAMESPACE {

enum class Division : std::uint8_t { None, ByReciprocal, True };

/// Out of line: rows that hold or become infinite or NaN. Leaves the rounded bits in `stored` and their values in
/// `values`.
template <typename Row>
HWY_NOINLINE void count_nonfinite_row(
    const ReduceChunk& chunk,
    std::size_t run_begin,
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
      const auto* source = static_cast<const typename Row::Stored*>(chunk.sources[s]) + run_begin + at;
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
  rows.read(0, at, values);
  for (std::size_t s = 1; s < rows.sources(); ++s) {
    typename Row::V terms[Row::kVectors];
    rows.read(s, at, terms);
    GRADSYNC_UNROLL
    for (std::size_t k = 0; k < Row::kVectors; ++k) {
      values[k] = hn::Add(values[k], terms[k]);
    }
  }
  rows.close(values);
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
    count_nonfinite_row<Row>(chunk, rows.run_begin(), at, row_values, row_stored, stats);
    reload_row<Row>(row_values, values);
    load_raw<Row>(row_stored, raw);
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
    return arithmetic::bfloat16_to_float(arithmetic::float_to_bfloat16(value));
  } else if constexpr (Row::kDType == plan::DType::Float16) {
    return arithmetic::float16_to_float(arithmetic::float_to_float16(value));
  } else {
    return value;
  }
}

template <typename Row, Peers kPeers, PowerKind kPower>
HWY_INLINE void reduce_run(
    const ReduceChunk& chunk,
    std::size_t run,
    const RowEnd<Row>* row_end,
    Division division,
    typename Row::V divisor,
    PowerSums<typename Row::Value>& sums,
    typename Row::VBits& largest,
    ChunkStats& stats
) {
  const WholeRows<Row, kPeers> whole(chunk, run);
  const std::size_t count = chunk.count;
  std::size_t at = 0;
  for (; at + kRow <= count; at += kRow) {
    whole.prefetch(at);
    reduce_row<Row, kPower>(chunk, whole, at, division, divisor, sums, largest, stats);
  }
  if (at < count) {
    if constexpr (kPeers == Peers::Runs) {
      if (OpenRow<Row>::fits(chunk, run, at)) {
        const OpenRow<Row> open(chunk, run, *row_end);
        reduce_row<Row, kPower>(chunk, open, at, division, divisor, sums, largest, stats);
        return;
      }
    }
    const PartialRow<Row, kPeers> rest(chunk, run);
    reduce_row<Row, kPower>(chunk, rest, at, division, divisor, sums, largest, stats);
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
  if constexpr (kPeers == Peers::Runs) {
    const RowEnd<Row> row_end(chunk.count % kRow);
    for (std::size_t run = 0; run < chunk.runs; ++run) {
      reduce_run<Row, kPeers, kPower>(chunk, run, &row_end, division, by, sums, largest, stats);
    }
  } else {
    reduce_run<Row, kPeers, kPower>(chunk, 0, nullptr, division, by, sums, largest, stats);
  }

  stats.power_sum = total<Row>(sums);
  const double maximum = maximum_of<Row>(largest);
  stats.maximum = maximum > stats.maximum ? maximum : stats.maximum;
  return stats;
}

template <typename Row, PowerKind kPower>
ChunkStats reduce_by_peers(const ReduceChunk& chunk) {
  if (chunk.runs != 1) {
    return reduce_rows<Row, Peers::Runs, kPower>(chunk);
  }
  if (chunk.sources.size() == 1 && chunk.destinations.empty()) {
    return reduce_rows<Row, Peers::OneToNone, kPower>(chunk);
  }
  if (chunk.sources.size() == 2 && chunk.destinations.size() == 2) {
    return reduce_rows<Row, Peers::TwoToTwo, kPower>(chunk);
  }
  if (chunk.sources.size() == 2 && chunk.destinations.size() == 1) {
    return reduce_rows<Row, Peers::TwoToOne, kPower>(chunk);
  }
  return reduce_rows<Row, Peers::Any, kPower>(chunk);
}

/// `reduce_chunk` for chunks of this format.
template <typename Row>
ChunkStats reduce_as(const ReduceChunk& chunk) {
  switch (chunk.power) {
    case PowerKind::Two:
      return reduce_by_peers<Row, PowerKind::Two>(chunk);
    case PowerKind::One:
      return chunk.runs == 1 ? reduce_rows<Row, Peers::Any, PowerKind::One>(chunk)
                             : reduce_rows<Row, Peers::Runs, PowerKind::One>(chunk);
    default:
      return chunk.runs == 1 ? reduce_rows<Row, Peers::Any, PowerKind::None>(chunk)
                             : reduce_rows<Row, Peers::Runs, PowerKind::None>(chunk);
  }
}

}  // namespace gradsync::device::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#endif
