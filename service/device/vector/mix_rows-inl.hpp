// The reduction of a chunk whose sources have several formats, or another one than the result. Included once per vector
// target (foreach_target.h), hence no `#pragma once`.

#if defined(GRADSYNC_DEVICE_MIX_ROWS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADSYNC_DEVICE_MIX_ROWS_INL
#undef GRADSYNC_DEVICE_MIX_ROWS_INL
#else
#define GRADSYNC_DEVICE_MIX_ROWS_INL
#endif

#include "device/vector/reduce_rows-inl.hpp"

HWY_BEFORE_NAMESPACE();

namespace gradsync::device::HWY_NAMESPACE {

/// Values of a row from element `at` on; all of these formats are computed with in the same vectors, in the same order.
struct WholeMixedRow {
  template <typename Row>
  HWY_INLINE void read(const typename Row::Stored* from, VFloat (&values)[Row::kVectors]) const {
    load_row<Row>(from, values);
  }

  template <typename Row>
  HWY_INLINE void write(const typename Row::Raw (&raw)[Row::kRaws], typename Row::Stored* to) const {
    store_row<Row>(raw, to);
  }
};

/// The last row of a run, shorter than 32. Padded with zeros, which add nothing to any sum.
struct PartialMixedRow {
  template <typename Row>
  HWY_INLINE void read(const typename Row::Stored* from, VFloat (&values)[Row::kVectors]) const {
    load_first<Row>(from, length, values);
  }

  template <typename Row>
  HWY_INLINE void write(const typename Row::Raw (&raw)[Row::kRaws], typename Row::Stored* to) const {
    store_first<Row>(raw, length, to);
  }

  std::size_t length;
};

/// The rows of a run, as `reduce_row` takes them.
template <typename Row, typename Extent>
class MixedRows {
 public:
  HWY_INLINE MixedRows(const MixedChunk& chunk, std::size_t run, Extent extent)
      : chunk_(chunk), from_(run * chunk.source_distance), to_(run * chunk.count), extent_(extent) {}

  HWY_INLINE std::size_t run_begin() const { return from_; }

  HWY_INLINE std::size_t sources() const { return chunk_.sources.size(); }

  HWY_INLINE void read(std::size_t s, std::size_t at, VFloat (&values)[Row::kVectors]) const {
    const MixedSource& source = chunk_.sources[s];
    const std::size_t from = from_ + at;
    if (source.dtype == plan::DType::Float32) {
      extent_.template read<Float32Row>(static_cast<const float*>(source.data) + from, values);
    } else if (source.dtype == plan::DType::BFloat16) {
      extent_.template read<BFloat16InOrderRow>(static_cast<const std::uint16_t*>(source.data) + from, values);
    } else {
      extent_.template read<Float16Row>(static_cast<const std::uint16_t*>(source.data) + from, values);
    }
  }

  HWY_INLINE void close(VFloat (& /*values*/)[Row::kVectors]) const {}

  HWY_INLINE void write(const typename Row::Raw (&raw)[Row::kRaws], std::size_t at) const {
    for (void* destination : chunk_.destinations) {
      extent_.template write<Row>(raw, static_cast<typename Row::Stored*>(destination) + to_ + at);
    }
  }

 private:
  const MixedChunk& chunk_;
  std::size_t from_;
  std::size_t to_;
  Extent extent_;
};

template <typename Row, PowerKind kPower>
ChunkStats mix_rows(const MixedChunk& chunk) {
  const auto divisor = static_cast<float>(chunk.divisor);
  const auto by = hn::Set(DFloat(), divisor);
  const Division division = divisor == 1.0F ? Division::None : Division::True;
  ReduceChunk shape;  // what `reduce_row` takes from it; it finds no source of its own format there
  shape.dtype = chunk.dtype;
  shape.count = chunk.count;
  ChunkStats stats;
  auto largest = hn::Zero(typename Row::DBits());
  PowerSums<float> sums;
  clear(sums);
  for (std::size_t run = 0; run < chunk.runs; ++run) {
    const MixedRows<Row, WholeMixedRow> whole(chunk, run, WholeMixedRow{});
    std::size_t at = 0;
    for (; at + kRow <= chunk.count; at += kRow) {
      reduce_row<Row, kPower>(shape, whole, at, division, by, sums, largest, stats);
    }
    if (at < chunk.count) {
      const MixedRows<Row, PartialMixedRow> rest(chunk, run, PartialMixedRow{chunk.count - at});
      reduce_row<Row, kPower>(shape, rest, at, division, by, sums, largest, stats);
    }
  }
  stats.power_sum = total<Row>(sums);
  const double maximum = maximum_of<Row>(largest);
  stats.maximum = maximum > stats.maximum ? maximum : stats.maximum;
  return stats;
}

template <typename Row>
ChunkStats mix_as(const MixedChunk& chunk) {
  switch (chunk.power) {
    case PowerKind::Two:
      return mix_rows<Row, PowerKind::Two>(chunk);
    case PowerKind::One:
      return mix_rows<Row, PowerKind::One>(chunk);
    default:
      return mix_rows<Row, PowerKind::None>(chunk);
  }
}

}  // namespace gradsync::device::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#endif
