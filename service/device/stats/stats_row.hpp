#pragma once
// One row of a table that a trainer's process writes: read whole before anything is believed, then checked.

#include "device/math/norm_sum.hpp"
#include "device/stats/stats_plan.hpp"

#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

namespace gradsync::device {

/// A copy that the writer cannot change any more: each word is read once. `row` is aligned to 8 bytes.
[[nodiscard]] inline StatsRow copy_row(std::byte* row) {
  static_assert(std::endian::native == std::endian::little, "rows are little-endian, and read as they are");
  std::array<std::uint64_t, sizeof(StatsRow) / sizeof(std::uint64_t)> words;
  auto* const source = reinterpret_cast<std::uint64_t*>(row);
  for (std::size_t i = 0; i < words.size(); ++i) {
    words[i] = std::atomic_ref(source[i]).load(std::memory_order_relaxed);
  }
  return std::bit_cast<StatsRow>(words);
}

/// Sums that a client took in plain doubles over as many elements as there may be, and powers of a ratio, are closer.
inline constexpr double kRowRounding = 1e-6;
inline constexpr double kSmallestPlain = 1e-290;
inline constexpr double kNotTaken = -1;         ///< a maximum that nothing depends on
inline constexpr double kLargestPlain = 1e300;  ///< room to add the rows of as many tensors as there may be

/// The fault of a row.
struct RowFault {
  std::string field;
  std::string message;  ///< the value, and what it must be
};

/// Whether the row is of attempt `stamp` (its gradient absent: stamp 0, always right) and can be what gradients of that
/// many elements have for this p. Where values are not finite the sum of the others is of no use, and not checked.
[[nodiscard]] std::optional<RowFault> fault_of(
    const StatsRow& row, std::uint64_t stamp, std::uint64_t elements, double p
);

/// True for most rows that are right, false for all that are not: what `fault_of` finds of a gradient of finite values
/// with an ordinary sum, for the usual p, without a call.
[[nodiscard]] inline bool plainly_right(const StatsRow& row, std::uint64_t stamp, std::uint64_t elements, double p) {
  if (row.stamp != stamp || row.nonfinite != 0 || row.nan != 0 || row.scale != 1 || (p != 2 && p != 1)) {
    return false;
  }
  if (!(row.power_sum > kSmallestPlain && row.power_sum <= kLargestPlain &&
        std::abs(row.power_sum_low) <= row.power_sum * std::numeric_limits<double>::epsilon())) {
    return false;
  }
  if (row.maximum == kNotTaken) {
    return elements != 0;
  }
  const double largest = p == 2 ? row.maximum * row.maximum : row.maximum;
  return row.maximum > 0 && largest > kSmallestPlain && row.power_sum >= largest * (1 - kRowRounding) &&
         row.power_sum <= static_cast<double>(elements) * largest * (1 + kRowRounding);
}

/// Whether rows of two holders of one box can be of equal gradients: counts and the maxima taken exactly, the bytes by
/// their fingerprints where both have one, else the sums but for the rounding of another order of addition.
[[nodiscard]] bool agree(const StatsRow& a, const StatsRow& b, double p);

[[nodiscard]] inline TensorSum sum_of(const StatsRow& row) {
  return {{row.power_sum, row.power_sum_low}, row.scale, row.maximum, row.nonfinite, row.nan};
}

}  // namespace gradsync::device
