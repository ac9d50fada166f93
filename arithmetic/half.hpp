#pragma once
// float32 ↔ the two 16-bit formats: to nearest, ties to even. On the host in integers, so that no compiler, library or
// CPU has a say in it; on a GPU by its conversion instructions, which round alike but name NaN otherwise. NaN becomes
// the canonical quiet NaN (0x7fc0, 0x7e00): the payload that an addition of two NaNs leaves depends on the order a
// compiler puts them in.

#include "arithmetic/host_device.hpp"

namespace gradsync::arithmetic {

inline constexpr std::uint16_t kBFloat16Nan = 0x7fc0U;
inline constexpr std::uint16_t kFloat16Nan = 0x7e00U;
/// The smallest float32 magnitudes that round to infinity in the 16-bit formats.
inline constexpr std::uint32_t kBFloat16Overflow = 0x7f7f'8000U;
inline constexpr std::uint32_t kFloat16Overflow = 0x477f'f000U;

GRADSYNC_HD inline float bfloat16_to_float(std::uint16_t half) {
  return bits_as<float>(static_cast<std::uint32_t>(half) << 16);
}

GRADSYNC_HD inline std::uint16_t float_to_bfloat16(float value) {
#ifdef __CUDA_ARCH__
  std::uint16_t half;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(half) : "f"(value));
  return value != value ? kBFloat16Nan : half;
#else
  const auto bits = bits_as<std::uint32_t>(value);
  if ((bits & kFloatMagnitude) > kFloatInfinity) {
    return kBFloat16Nan;
  }
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
#endif
}

GRADSYNC_HD inline float float16_to_float(std::uint16_t half) {
#ifdef __CUDA_ARCH__
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
  return value;
#else
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1fU;
  const std::uint32_t mantissa = half & 0x3ffU;
  if (exponent == 0x1fU) {
    return bits_as<float>(sign | kFloatInfinity | (mantissa << 13));
  }
  if (exponent == 0) {
    // A multiple of 2^-24, exact in float32.
    return bits_as<float>(sign | bits_as<std::uint32_t>(static_cast<float>(mantissa) * 0x1p-24F));
  }
  return bits_as<float>(sign | ((exponent + 112U) << 23) | (mantissa << 13));
#endif
}

GRADSYNC_HD inline std::uint16_t float_to_float16(float value) {
#ifdef __CUDA_ARCH__
  std::uint16_t half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
  return value != value ? kFloat16Nan : half;
#else
  const auto bits = bits_as<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & kFloatMagnitude;
  if (magnitude > kFloatInfinity) {
    return kFloat16Nan;
  }
  if (magnitude >= kFloat16Overflow) {
    return static_cast<std::uint16_t>(sign | 0x7c00U);
  }
  if (magnitude >= 0x3880'0000U) {  // 2^-14, the smallest normal
    return static_cast<std::uint16_t>(sign | ((magnitude + 0xfffU + ((magnitude >> 13) & 1U) - (112U << 23)) >> 13));
  }
  const std::uint32_t exponent = magnitude >> 23;
  if (exponent < 102U) {  // below 2^-25: half of the smallest subnormal
    return static_cast<std::uint16_t>(sign);
  }
  const std::uint32_t significand = (magnitude & 0x7f'ffffU) | 0x80'0000U;
  const std::uint32_t shift = 126U - exponent;  // 14 … 24
  const std::uint32_t kept = significand >> shift;
  const std::uint32_t dropped = significand & ((1U << shift) - 1U);
  const std::uint32_t tie = 1U << (shift - 1U);
  const std::uint32_t up = dropped > tie || (dropped == tie && (kept & 1U) != 0) ? 1U : 0U;
  return static_cast<std::uint16_t>(sign | (kept + up));
#endif
}

}  // namespace gradsync::arithmetic
