#pragma once
// Marks what g++ compiles for the host and nvcc for both sides, and the few bit operations both need.

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define GRADSYNC_HD __host__ __device__
#else
#define GRADSYNC_HD
#endif

namespace gradsync::arithmetic {

template <typename To, typename From>
GRADSYNC_HD inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

GRADSYNC_HD inline bool is_finite(double value) { return value - value == 0; }

GRADSYNC_HD inline bool is_nan(double value) { return value != value; }

inline constexpr std::uint32_t kFloatMagnitude = 0x7fff'ffffU;
inline constexpr std::uint32_t kFloatInfinity = 0x7f80'0000U;
inline constexpr std::uint32_t kFloatNan = 0x7fc0'0000U;
inline constexpr std::uint64_t kDoubleMagnitude = 0x7fff'ffff'ffff'ffffULL;
inline constexpr std::uint64_t kDoubleInfinity = 0x7ff0'0000'0000'0000ULL;
inline constexpr std::uint64_t kDoubleNan = 0x7ff8'0000'0000'0000ULL;

}  // namespace gradsync::arithmetic
