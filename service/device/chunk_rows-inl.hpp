// Where the rows of a chunk are read and written. Included once per vector target (foreach_target.h), hence no
// `#pragma once`.

#if defined(GRADSYNC_DEVICE_CHUNK_ROWS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADSYNC_DEVICE_CHUNK_ROWS_INL
#undef GRADSYNC_DEVICE_CHUNK_ROWS_INL
#else
#define GRADSYNC_DEVICE_CHUNK_ROWS_INL
#endif

#include "device/chunk_math.hpp"
#include "device/row_formats-inl.hpp"

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

HWY_BEFORE_NAMESPACE();

namespace gradsync::device::HWY_NAMESPACE {

/// The usual numbers of sources and destinations are constants of the loop; pointers then live in registers.
enum class Peers : std::uint8_t { OneToNone, TwoToTwo, Any };

/// Where the rows of a run are. The pointers are copies, because every store might change what the spans point to. More
/// runs than one are of `Any` peers.
template <typename Row, Peers kPeers>
class WholeRows {
 public:
  using Stored = typename Row::Stored;

  HWY_INLINE WholeRows(const ReduceChunk& chunk, std::size_t run)
      : chunk_(chunk),
        from_(run * chunk.source_distance),
        to_(run * chunk.count),
        first_(static_cast<const Stored*>(chunk.sources[0])),
        second_(kPeers == Peers::TwoToTwo ? static_cast<const Stored*>(chunk.sources[1]) : nullptr),
        first_to_(kPeers == Peers::TwoToTwo ? static_cast<Stored*>(chunk.destinations[0]) : nullptr),
        second_to_(kPeers == Peers::TwoToTwo ? static_cast<Stored*>(chunk.destinations[1]) : nullptr) {}

  HWY_INLINE std::size_t run_begin() const { return from_; }

  HWY_INLINE std::size_t sources() const {
    return kPeers == Peers::OneToNone ? 1 : kPeers == Peers::TwoToTwo ? 2 : chunk_.sources.size();
  }

  HWY_INLINE const Stored* source(std::size_t s, std::size_t at) const {
    if constexpr (kPeers == Peers::Any) {
      return static_cast<const Stored*>(chunk_.sources[s]) + from_ + at;
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
        Row::store(raw, static_cast<Stored*>(destination) + to_ + at);
      }
    }
  }

 private:
  const ReduceChunk& chunk_;
  std::size_t from_;
  std::size_t to_;
  const Stored* first_;
  const Stored* second_;
  Stored* first_to_;
  Stored* second_to_;
};

/// The last row of a run, shorter than 32. Padded with zeros, which add nothing to any sum. One buffer is enough,
/// because a source is read to its end before the next is asked for, and as long a row ends every run.
template <typename Row>
class PartialRow {
 public:
  using Stored = typename Row::Stored;

  PartialRow(const ReduceChunk& chunk, std::size_t run, Stored* padded)
      : chunk_(chunk), from_(run * chunk.source_distance), to_(run * chunk.count), padded_(padded) {}

  HWY_INLINE std::size_t run_begin() const { return from_; }

  HWY_INLINE std::size_t sources() const { return chunk_.sources.size(); }

  HWY_INLINE const Stored* source(std::size_t s, std::size_t at) const {
    const Stored* source = static_cast<const Stored*>(chunk_.sources[s]) + from_ + at;
    std::memcpy(padded_, source, (chunk_.count - at) * sizeof(Stored));
    return padded_;
  }

  HWY_INLINE void write(const typename Row::Raw (&raw)[Row::kRaws], std::size_t at) const {
    HWY_ALIGN Stored row[kRow];
    Row::store(raw, row);
    for (void* destination : chunk_.destinations) {
      std::memcpy(static_cast<Stored*>(destination) + to_ + at, row, (chunk_.count - at) * sizeof(Stored));
    }
  }

 private:
  const ReduceChunk& chunk_;
  std::size_t from_;
  std::size_t to_;
  Stored* padded_;
};

}  // namespace gradsync::device::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#endif
