#include "device/stats/stats_row.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace gradsync::device {

namespace {

// Sums of equal values differ by less, whatever the order in which a library adds them.
constexpr double kOrder = 1e-12;

double power(double base, double p) {
  if (p == 2) {
    return base * base;
  }
  return p == 1 ? base : std::pow(base, p);
}

/// A row needs no maximum where its sum is plain and neither too small nor too large.
std::optional<RowFault> fault_without_maximum(const StatsRow& row, std::uint64_t elements, double p) {
  if (std::isinf(p) || elements == 0 || row.nonfinite != 0 || row.scale != 1 ||
      !(row.power_sum > kSmallestPlain && row.power_sum <= kLargestPlain)) {
    return RowFault{
        "maximum",
        fmt::format(
            "is {}, not taken, which a sum between {} and {} of finite values with scale 1 allows, for a finite p; "
            "here power_sum is {} of {} values with scale {}, {} of them not finite, p is {}",
            kNotTaken,
            kSmallestPlain,
            kLargestPlain,
            row.power_sum,
            elements,
            row.scale,
            row.nonfinite,
            p
        )};
  }
  return std::nullopt;
}

std::optional<RowFault> low_fault(const StatsRow& row) {
  if (!(std::abs(row.power_sum_low) <= row.power_sum * std::numeric_limits<double>::epsilon())) {
    return RowFault{
        "power_sum_low", fmt::format("is {}, it must be small against power_sum {}", row.power_sum_low, row.power_sum)};
  }
  return std::nullopt;
}

std::optional<RowFault> sum_fault(const StatsRow& row, std::uint64_t finite, double p) {
  if (std::isinf(p)) {
    if (row.power_sum != 0) {
      return RowFault{"power_sum", fmt::format("is {}, it must be 0 where p is infinite", row.power_sum)};
    }
    return std::nullopt;
  }
  const double largest = power(row.maximum / row.scale, p);
  if (row.power_sum > kLargestPlain) {
    return RowFault{
        "scale",
        fmt::format(
            "is {}: power_sum {} leaves no room to add, divide by about the maximum", row.scale, row.power_sum
        )};
  }
  if (row.maximum != 0 && !(largest >= std::numeric_limits<double>::min() && std::isfinite(largest))) {
    return RowFault{
        "scale",
        fmt::format(
            "is {}: the power {} of maximum {} / scale leaves the doubles, divide by about the maximum",
            row.scale,
            p,
            row.maximum
        )};
  }
  if (!(row.power_sum >= largest * (1 - kRowRounding) &&
        row.power_sum <= static_cast<double>(finite) * largest * (1 + kRowRounding))) {
    return RowFault{
        "power_sum",
        fmt::format(
            "is {}, but {} finite values up to {} make one between {} and {} for p = {} and scale {}",
            row.power_sum,
            finite,
            row.maximum,
            largest,
            static_cast<double>(finite) * largest,
            p,
            row.scale
        )};
  }
  return std::nullopt;
}

}  // namespace

std::optional<RowFault> fault_of(const StatsRow& row, std::uint64_t stamp, std::uint64_t elements, double p) {
  if (row.stamp == 0) {
    return std::nullopt;
  }
  if (row.stamp != stamp) {
    return RowFault{
        "stamp",
        fmt::format("is {}, this attempt's is {}: the row was not filled for it, nor set to 0", row.stamp, stamp)};
  }
  if (row.nonfinite > elements) {
    return RowFault{"nonfinite", fmt::format("is {}, but {} elements are held", row.nonfinite, elements)};
  }
  if (row.nan > row.nonfinite) {
    return RowFault{"nan", fmt::format("is {}, but only {} values are not finite", row.nan, row.nonfinite)};
  }
  if (row.maximum == kNotTaken) {
    const auto fault = fault_without_maximum(row, elements, p);
    return fault ? fault : low_fault(row);
  }
  if (!std::isfinite(row.maximum) || row.maximum < 0) {
    return RowFault{
        "maximum", fmt::format("is {}, it must be finite and at least 0, or {}: not taken", row.maximum, kNotTaken)};
  }
  if (!std::isfinite(row.scale) || row.scale <= 0) {
    return RowFault{"scale", fmt::format("is {}, it must be finite and above 0", row.scale)};
  }
  const std::uint64_t finite = elements - row.nonfinite;
  if (finite == 0 && row.maximum != 0) {
    return RowFault{"maximum", fmt::format("is {}, but no finite value is held", row.maximum)};
  }
  if (row.nonfinite != 0) {
    return std::nullopt;
  }
  if (!std::isfinite(row.power_sum) || row.power_sum < 0) {
    return RowFault{"power_sum", fmt::format("is {}, it must be finite and at least 0", row.power_sum)};
  }
  const auto fault = low_fault(row);
  return fault ? fault : sum_fault(row, finite, p);
}

bool agree(const StatsRow& a, const StatsRow& b, double p) {
  const bool both_taken = a.maximum != kNotTaken && b.maximum != kNotTaken;
  if ((both_taken && a.maximum != b.maximum) || a.nonfinite != b.nonfinite || a.nan != b.nan) {
    return false;
  }
  if (a.fingerprint != 0 && b.fingerprint != 0) {
    return a.fingerprint == b.fingerprint;
  }
  if (a.nonfinite != 0 || std::isinf(p)) {
    return true;  // of the rest nothing is known
  }
  if (a.maximum == 0 && b.maximum == 0) {
    return true;  // both are all zeros, whatever they were divided by
  }
  const double ratio = a.scale == b.scale ? 1 : power(b.scale / a.scale, p);
  const double other = b.power_sum * ratio;
  return std::abs(a.power_sum - other) <= kOrder * std::max(a.power_sum, other);
}

}  // namespace gradsync::device
