#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/vector/mix_to_float32.cpp"
// Includes this file once per vector target, so it comes before everything else.
// clang-format off
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "device/vector/mix_rows-inl.hpp"

HWY_BEFORE_NAMESPACE();

namespace gradsync::device::HWY_NAMESPACE {

ChunkStats mix_as_float32(const MixedChunk& chunk) { return mix_as<Float32Row>(chunk); }

}  // namespace gradsync::device::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace gradsync::device {

HWY_EXPORT(mix_as_float32);

ChunkStats mix_to_float32(const MixedChunk& chunk) { return HWY_DYNAMIC_DISPATCH(mix_as_float32)(chunk); }

}  // namespace gradsync::device

#endif
