// Finds, reads and writes the rows of a chunk. Included once per vector target (foreach_target.h), hence no `#pragma
// once`.

#if defined(GRADSYNC_DEVICE_CHUNK_ROWS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADSYNC_DEVICE_CHUNK_ROWS_INL
#undef GRADSYNC_DEVICE_CHUNK_ROWS_INL
#else
#define GRADSYNC_DEVICE_CHUNK_ROWS_INL
#endif

#include "device/math/chunk_math.hpp"
#include "device/vector/row_formats-inl.hpp"

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

HWY_BEFORE_NAMESPACE();

namespace gradsync::device::HWY_NAMESPACE {

/// The usual numbers of sources and destinations are constants of the loop; pointers then live in registers. `Runs`:
/// any numbers, and several runs, for which the others have no code.
enum class Peers : std::uint8_t { OneToNone, TwoToOne, TwoToTwo, Any, Runs };

/// The begin of a run in the sources and in the destinations.
template <Peers kPeers>
struct RunPlace {
  HWY_INLINE RunPlace(const ReduceChunk& /*chunk*/, std::size_t /*run*/) {}

  static constexpr std::size_t from = 0;
  static constexpr std::size_t to = 0;
};

template <>
struct RunPlace<Peers::Runs> {
  HWY_INLINE RunPlace(const ReduceChunk& chunk, std::size_t run)
      : from(run * chunk.source_distance), to(run * chunk.count) {}

  std::size_t from;
  std::size_t to;
};

/// The memory of the rows of a run. The pointers are copies, because every store might change what the spans point to.
template <typename Row, Peers kPeers>
class WholeRows {
 public:
  using Stored = typename Row::Stored;

  HWY_INLINE WholeRows(const ReduceChunk& chunk, std::size_t run)
      : chunk_(chunk),
        place_(chunk, run),
        first_(static_cast<const Stored*>(chunk.sources[0])),
        second_(kTwo ? static_cast<const Stored*>(chunk.sources[1]) : nullptr),
        first_to_(kTwo ? static_cast<Stored*>(chunk.destinations[0]) : nullptr),
        second_to_(kPeers == Peers::TwoToTwo ? static_cast<Stored*>(chunk.destinations[1]) : nullptr) {}

  HWY_INLINE std::size_t run_begin() const { return place_.from; }

  HWY_INLINE std::size_t sources() const { return kPeers == Peers::OneToNone ? 1 : kTwo ? 2 : chunk_.sources.size(); }

  HWY_INLINE void read(std::size_t s, std::size_t at, typename Row::V (&values)[Row::kVectors]) const {
    if constexpr (kPeers == Peers::Any || kPeers == Peers::Runs) {
      load_row<Row>(static_cast<const Stored*>(chunk_.sources[s]) + place_.from + at, values);
    } else {
      load_row<Row>((s == 0 ? first_ : second_) + at, values);
    }
  }

  HWY_INLINE void close(typename Row::V (& /*values*/)[Row::kVectors]) const {}

  /// Half formats compute for so long per byte that the hardware's prefetcher falls behind (measured; float32 gains
  /// nothing). A prefetch never faults, so it may run past the end.
  HWY_INLINE void prefetch(std::size_t at) const {
    if constexpr (sizeof(Stored) == 2 && (kPeers == Peers::OneToNone || kTwo)) {
      constexpr std::size_t kAhead = 2048 / sizeof(Stored);
      hwy::Prefetch(first_ + at + kAhead);  // a row is one cache line
      if constexpr (kTwo) {
        hwy::Prefetch(second_ + at + kAhead);
      }
    }
  }

  HWY_INLINE void write(const typename Row::Raw (&raw)[Row::kRaws], std::size_t at) const {
    if constexpr (kTwo) {
      store_row<Row>(raw, first_to_ + at);
      if constexpr (kPeers == Peers::TwoToTwo) {
        store_row<Row>(raw, second_to_ + at);
      }
    } else if constexpr (kPeers != Peers::OneToNone) {
      for (void* destination : chunk_.destinations) {
        store_row<Row>(raw, static_cast<Stored*>(destination) + place_.to + at);
      }
    }
  }

 private:
  static constexpr bool kTwo = kPeers == Peers::TwoToOne || kPeers == Peers::TwoToTwo;

  const ReduceChunk& chunk_;
  [[no_unique_address]] RunPlace<kPeers> place_;
  const Stored* first_;
  const Stored* second_;
  Stored* first_to_;
  Stored* second_to_;
};

/// The elements of a row that belong to a run that ends in it.
template <typename Row>
struct RowEnd {
  explicit RowEnd(std::size_t length) {
    for (std::size_t k = 0; k < Row::kVectors; ++k) {
      HWY_ALIGN typename Row::Bits lanes[Row::kLanes];
      for (std::size_t lane = 0; lane < Row::kLanes; ++lane) {
        lanes[lane] = Row::element(k, lane) < length ? -1 : 0;
      }
      bits[k] = hn::LoadU(typename Row::DBits(), lanes);
    }
  }

  typename Row::VBits bits[Row::kVectors];
};

/// The last row of a run, where others of the chunk follow it in the sources and in the destinations: read and written
/// as if it were whole. Elements read beyond its end are made zero; the next run writes again what was written beyond
/// it.
template <typename Row>
class OpenRow {
 public:
  using Stored = typename Row::Stored;

  HWY_INLINE OpenRow(const ReduceChunk& chunk, std::size_t run, const RowEnd<Row>& end)
      : chunk_(chunk), place_(chunk, run), end_(end) {}

  static HWY_INLINE bool fits(const ReduceChunk& chunk, std::size_t run, std::size_t at) {
    const std::size_t left = chunk.runs - 1 - run;
    return at + kRow <= left * chunk.source_distance + chunk.count && at + kRow <= (left + 1) * chunk.count;
  }

  HWY_INLINE std::size_t run_begin() const { return place_.from; }

  HWY_INLINE std::size_t sources() const { return chunk_.sources.size(); }

  HWY_INLINE void read(std::size_t s, std::size_t at, typename Row::V (&values)[Row::kVectors]) const {
    load_row<Row>(static_cast<const Stored*>(chunk_.sources[s]) + place_.from + at, values);
  }

  HWY_INLINE void close(typename Row::V (&values)[Row::kVectors]) const {
    const typename Row::DBits d;
    GRADSYNC_UNROLL
    for (std::size_t k = 0; k < Row::kVectors; ++k) {
      values[k] = hn::BitCast(typename Row::D(), hn::And(hn::BitCast(d, values[k]), end_.bits[k]));
    }
  }

  HWY_INLINE void write(const typename Row::Raw (&raw)[Row::kRaws], std::size_t at) const {
    for (void* destination : chunk_.destinations) {
      store_row<Row>(raw, static_cast<Stored*>(destination) + place_.to + at);
    }
  }

 private:
  const ReduceChunk& chunk_;
  RunPlace<Peers::Runs> place_;
  const RowEnd<Row>& end_;
};

/// The last row of a run, shorter than 32. Padded with zeros, which add nothing to any sum.
template <typename Row, Peers kPeers>
class PartialRow {
 public:
  using Stored = typename Row::Stored;

  HWY_INLINE PartialRow(const ReduceChunk& chunk, std::size_t run) : chunk_(chunk), place_(chunk, run) {}

  HWY_INLINE std::size_t run_begin() const { return place_.from; }

  HWY_INLINE std::size_t sources() const { return chunk_.sources.size(); }

  HWY_INLINE void read(std::size_t s, std::size_t at, typename Row::V (&values)[Row::kVectors]) const {
    const auto* source = static_cast<const Stored*>(chunk_.sources[s]);
    load_first<Row>(source + place_.from + at, chunk_.count - at, values);
  }

  HWY_INLINE void close(typename Row::V (& /*values*/)[Row::kVectors]) const {}

  HWY_INLINE void write(const typename Row::Raw (&raw)[Row::kRaws], std::size_t at) const {
    for (void* destination : chunk_.destinations) {
      store_first<Row>(raw, chunk_.count - at, static_cast<Stored*>(destination) + place_.to + at);
    }
  }

 private:
  const ReduceChunk& chunk_;
  [[no_unique_address]] RunPlace<kPeers> place_;
};

}  // namespace gradsync::device::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#endif
