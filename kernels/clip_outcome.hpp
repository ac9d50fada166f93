#pragma once
// The result of `decide` for one clip group, as it lies in device memory.

#include "arithmetic/clip.hpp"

namespace gradsync::kernels {

struct ClipOutcome : arithmetic::Clipping {
  std::uint64_t nonfinite;
  std::uint32_t found_inf;  ///< a value was infinite or NaN (nothing else counts)
  std::uint32_t reserved;
};

/// What `multiply` is where the scale pass writes zeros, whatever was there; the multiplier is 0 as well.
inline constexpr std::uint32_t kWriteZeros = 2;

/// Whether the scale pass has anything to do.
GRADSYNC_HD inline bool changes(const ClipOutcome& outcome) { return outcome.multiply != 0 && outcome.multiplier != 1; }

GRADSYNC_HD inline ClipOutcome clip(
    const arithmetic::ClipLimit& limit, double raw_norm, double scale, std::uint64_t nonfinite
) {
  return {arithmetic::clip(limit, raw_norm, scale), nonfinite, nonfinite != 0 ? 1U : 0U, 0};
}

}  // namespace gradsync::kernels
