#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/scale_chunk.cpp"
// Includes this file once per vector target, so it comes before everything else; the order below matters too.
// clang-format off
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "device/row_formats-inl.hpp"
// clang-format on

#include "device/chunk_math.hpp"
#include "device/chunk_reference.hpp"

#include <cstring>

HWY_BEFORE_NAMESPACE();

namespace gradsync::device::HWY_NAMESPACE {

namespace {

template <typename Row>
HWY_INLINE void scale_row(typename Row::Stored* row, typename Row::V multiplier) {
  const typename Row::DBits bits;
  typename Row::V values[Row::kVectors];
  Row::load(row, values);
  GRADSYNC_UNROLL
  for (std::size_t k = 0; k < Row::kVectors; ++k) {
    values[k] = hn::Mul(values[k], multiplier);
  }
  const auto magnitude = row_magnitude<Row>(values);
  if (HWY_LIKELY(hn::AllTrue(bits, hn::Lt(magnitude, hn::Set(bits, Row::kOverflow))))) {
    typename Row::Raw raw[Row::kRaws];
    Row::round(values, raw);
    Row::store(raw, row);
    return;
  }
  HWY_ALIGN typename Row::Value elements[kRow];
  spill_row<Row>(values, elements);
  ChunkStats unused;
  if constexpr (Row::kDType == plan::DType::Float64) {
    finish_nonfinite_row(elements, kRow, row, unused);
  } else {
    finish_nonfinite_row(Row::kDType, elements, kRow, row, unused);
  }
}

template <typename Row>
void scale_as(void* values, std::size_t count, double multiplier) {
  auto* stored = static_cast<typename Row::Stored*>(values);
  const auto by = hn::Set(typename Row::D(), static_cast<typename Row::Value>(multiplier));
  std::size_t at = 0;
  for (; at + kRow <= count; at += kRow) {
    scale_row<Row>(stored + at, by);
  }
  if (at < count) {
    HWY_ALIGN typename Row::Stored padded[kRow] = {};
    std::memcpy(padded, stored + at, (count - at) * sizeof(padded[0]));
    scale_row<Row>(padded, by);
    std::memcpy(stored + at, padded, (count - at) * sizeof(padded[0]));
  }
}

}  // namespace

void scale_any(plan::DType dtype, void* values, std::size_t count, double multiplier) {
  switch (dtype) {
    case plan::DType::Float32:
      return scale_as<Float32Row>(values, count, multiplier);
    case plan::DType::BFloat16:
      return scale_as<BFloat16Row>(values, count, multiplier);
    case plan::DType::Float16:
      return scale_as<Float16Row>(values, count, multiplier);
    default:
      return scale_as<Float64Row>(values, count, multiplier);
  }
}

}  // namespace gradsync::device::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "base/assert.hpp"

namespace gradsync::device {

HWY_EXPORT(scale_any);

void scale_chunk(plan::DType dtype, void* values, std::size_t count, double multiplier) {
  HWY_DYNAMIC_DISPATCH(scale_any)(dtype, values, count, multiplier);
}

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
