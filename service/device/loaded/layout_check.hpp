#pragma once
// Checks that a plan fits the mapped memory and is consistent in itself: after this the arithmetic trusts every index,
// offset and length in it. Sums that many parts share are checked once, so that a hundred thousand tensors on 64 ranks
// cost no more than their parts.

#include "device/lane.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gradsync::device {

struct BufferView {
  std::byte* data = nullptr;
  std::uint64_t size_bytes = 0;
};

/// One buffer per rank, none of them twice, null for ranks that are not here; and a norm there is. Throws DeviceError.
void check_buffers(std::int64_t world_size, double norm_type, const std::vector<BufferView>& buffers);

/// Throws DeviceError naming what does not fit.
void check_layout(const LanePlan& layout, const std::vector<BufferView>& buffers);

}  // namespace gradsync::device
