#pragma once
// The requirements that the sums of a part have on the part and on the arenas of their ranks. They are found once for
// all parts that share the sums.

#include "device/lane.hpp"
#include "device/loaded/layout_check.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace gradsync::device {

/// A copy's memory in one arena, read or written by ranks that are laid out alike.
struct ArenaUse {
  std::uint32_t arena = 0;
  std::uint32_t copy = 0;
  bool writes = false;
  std::uint64_t size_bytes = 0;  ///< the size of the smallest of the ranks' buffers
  std::uint32_t rank = 0;        ///< the rank that has that buffer
  /// A rank that is a source, but no destination of the same sum.
  std::optional<std::uint32_t> only_read;
};

struct SumsUse {
  std::uint32_t copies = 0;  ///< the highest copy that takes part
  std::vector<ArenaUse> arenas;
};

/// One entry per LanePlan::sums. Ranks and arenas of the layout were checked.
[[nodiscard]] std::vector<SumsUse> uses_of_sums(const LanePlan& layout, const std::vector<BufferView>& buffers);

}  // namespace gradsync::device
