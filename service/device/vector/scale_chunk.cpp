#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/vector/scale_chunk.cpp"
// Includes this file once per vector target, so it comes before everything else; the order below matters too.
// clang-format off
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "device/vector/row_formats-inl.hpp"
#include "device/vector/half_rows-inl.hpp"
// clang-format on

#include "device/math/chunk_math.hpp"
#include "device/math/chunk_reference.hpp"

#include <hwy/cache_control.h>

#include <algorithm>
#include <cstdint>

HWY_BEFORE_NAMESPACE();

namespace gradsync::device::HWY_NAMESPACE {

namespace {

template <typename Row>
HWY_INLINE void scale_row(
    typename Row::V (&values)[Row::kVectors], typename Row::V multiplier, typename Row::Raw (&raw)[Row::kRaws]
) {
  const typename Row::DBits bits;
  GRADSYNC_UNROLL
  for (std::size_t k = 0; k < Row::kVectors; ++k) {
    values[k] = hn::Mul(values[k], multiplier);
  }
  const auto magnitude = row_magnitude<Row>(values);
  if (HWY_LIKELY(hn::AllTrue(bits, hn::Lt(magnitude, hn::Set(bits, Row::kOverflow))))) {
    Row::round(values, raw);
    return;
  }
  HWY_ALIGN typename Row::Value elements[kRow];
  HWY_ALIGN typename Row::Stored stored[kRow];
  spill_row<Row>(values, elements);
  ChunkStats unused;
  if constexpr (Row::kDType == plan::DType::Float64) {
    finish_nonfinite_row(elements, kRow, stored, unused);
  } else {
    finish_nonfinite_row(Row::kDType, elements, kRow, stored, unused);
  }
  load_raw<Row>(stored, raw);
}

template <typename Row, Stores kStores>
HWY_INLINE void write_row(const typename Row::Raw (&raw)[Row::kRaws], typename Row::Stored* to) {
  if constexpr (kStores == Stores::PastCache) {
    stream_row<Row>(raw, to);
  } else {
    store_row<Row>(raw, to);
  }
}

/// One or two destinations are constants of the loop, their pointers in registers.
template <typename Row, std::size_t kDestinations, Stores kStores>
HWY_INLINE std::size_t scale_whole_rows(
    const typename Row::Stored* source, std::span<void* const> destinations, std::size_t count, typename Row::V by
) {
  using Stored = typename Row::Stored;
  Stored* const first = static_cast<Stored*>(destinations[0]);
  Stored* const second = kDestinations == 2 ? static_cast<Stored*>(destinations[1]) : nullptr;
  std::size_t at = 0;
  for (; at + kRow <= count; at += kRow) {
    typename Row::V values[Row::kVectors];
    typename Row::Raw raw[Row::kRaws];
    load_row<Row>(source + at, values);
    scale_row<Row>(values, by, raw);
    store_row<Row>(raw, first + at);
    if constexpr (kDestinations == 2) {
      write_row<Row, kStores>(raw, second + at);
    } else if constexpr (kDestinations == 0) {
      for (std::size_t d = 1; d < destinations.size(); ++d) {
        write_row<Row, kStores>(raw, static_cast<Stored*>(destinations[d]) + at);
      }
    }
  }
  return at;
}

template <typename Row, Stores kStores>
HWY_INLINE std::size_t scale_copies(
    const typename Row::Stored* source, std::span<void* const> destinations, std::size_t count, typename Row::V by
) {
  return destinations.size() == 2 ? scale_whole_rows<Row, 2, kStores>(source, destinations, count, by)
                                  : scale_whole_rows<Row, 0, kStores>(source, destinations, count, by);
}

template <typename Row>
bool can_stream(std::span<void* const> destinations) {
  return kStreams<Row> && std::all_of(destinations.begin() + 1, destinations.end(), [](const void* destination) {
           return reinterpret_cast<std::uintptr_t>(destination) % kStreamAlignment == 0;
         });
}

template <typename Row>
void scale_as(
    const void* from, std::span<void* const> destinations, std::size_t count, double multiplier, Stores stores
) {
  using Stored = typename Row::Stored;
  const auto* source = static_cast<const Stored*>(from);
  const auto by = hn::Set(typename Row::D(), static_cast<typename Row::Value>(multiplier));
  const std::size_t at = destinations.size() == 1
                             ? scale_whole_rows<Row, 1, Stores::Cached>(source, destinations, count, by)
                         : stores == Stores::PastCache && can_stream<Row>(destinations)
                             ? scale_copies<Row, Stores::PastCache>(source, destinations, count, by)
                             : scale_copies<Row, Stores::Cached>(source, destinations, count, by);
  if (at < count) {
    typename Row::V values[Row::kVectors];
    typename Row::Raw raw[Row::kRaws];
    load_first<Row>(source + at, count - at, values);
    scale_row<Row>(values, by, raw);
    for (void* destination : destinations) {
      store_first<Row>(raw, count - at, static_cast<Stored*>(destination) + at);
    }
  }
}

}  // namespace

void scale_any(
    plan::DType dtype,
    const void* source,
    std::span<void* const> destinations,
    std::size_t count,
    double multiplier,
    Stores stores
) {
  switch (dtype) {
    case plan::DType::Float32:
      return scale_as<Float32Row>(source, destinations, count, multiplier, stores);
    case plan::DType::BFloat16:
      return scale_as<BFloat16Row>(source, destinations, count, multiplier, stores);
    case plan::DType::Float16:
      return scale_as<Float16Row>(source, destinations, count, multiplier, stores);
    default:
      return scale_as<Float64Row>(source, destinations, count, multiplier, stores);
  }
}

}  // namespace gradsync::device::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "base/assert.hpp"

namespace gradsync::device {

HWY_EXPORT(scale_any);

void scale_chunk(
    plan::DType dtype,
    const void* source,
    std::span<void* const> destinations,
    std::size_t count,
    double multiplier,
    Stores stores
) {
  HWY_DYNAMIC_DISPATCH(scale_any)(dtype, source, destinations, count, multiplier, stores);
}

void fence_stores() { hwy::FlushStream(); }

std::vector<std::string> vector_targets() {
  std::vector<std::string> names;
  for (std::int64_t left = hwy::SupportedTargets() & HWY_TARGETS; left != 0; left &= left - 1) {
    names.emplace_back(hwy::TargetName(left & -left));
  }
  return names;
}

void use_vector_target(const std::string& name) {
  hwy::SetSupportedTargetsForTest(0);
  if (!name.empty()) {
    std::int64_t left = hwy::SupportedTargets() & HWY_TARGETS;
    while (left != 0 && hwy::TargetName(left & -left) != name) {
      left &= left - 1;
    }
    GRADSYNC_ASSERT(left != 0, "a vector target that this build or CPU does not have");
    hwy::SetSupportedTargetsForTest(left & -left);
  }
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace gradsync::device

#endif
