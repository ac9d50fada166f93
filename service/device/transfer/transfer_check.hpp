#pragma once
// Checks what a plan over nodes says of them: who is where, and the transfer program of each bucket against the sums.
// After this the arithmetic trusts every index, offset and length in it, and every element of a sum that travels is in
// one piece of one block.

#include "device/lane.hpp"
#include "device/loaded/layout_check.hpp"

#include <vector>

namespace gradsync::device {

/// Which ranks are here, and that those have a buffer. Throws DeviceError.
void check_nodes(const LanePlan& layout, const std::vector<BufferView>& buffers);

/// For a layout whose parts, sums and buckets were checked. Throws DeviceError.
void check_transfers(const LanePlan& layout);

}  // namespace gradsync::device
