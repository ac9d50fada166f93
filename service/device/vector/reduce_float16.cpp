#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/vector/reduce_float16.cpp"
// Includes this file once per vector target, so it comes before everything else.
// clang-format off
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "device/vector/reduce_rows-inl.hpp"

HWY_BEFORE_NAMESPACE();

namespace gradsync::device::HWY_NAMESPACE {

ChunkStats reduce_as_float16(const ReduceChunk& chunk) { return reduce_as<Float16Row>(chunk); }

}  // namespace gradsync::device::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace gradsync::device {

HWY_EXPORT(reduce_as_float16);

ChunkStats reduce_float16(const ReduceChunk& chunk) { return HWY_DYNAMIC_DISPATCH(reduce_as_float16)(chunk); }

}  // namespace gradsync::device

#endif
