#pragma once

#include <limits>

namespace gradsync {

/// The values that a gradient, a norm or an option must not spread from.
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

}  // namespace gradsync
