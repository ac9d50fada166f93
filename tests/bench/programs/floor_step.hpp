#pragma once
// The bare loops of a step of two ranks, over memory that is given.
//
//   reduce pass   read both ranks' buffers, write one, sum the squares of what was written
//   scale pass    read that one and write both
//
// Per element of both ranks that is 3 reads and 3 writes.
#include "bench/programs/floor_team.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace gradsync::floors {

inline constexpr double kMaxNorm = 1.0;

struct Bfloat16 {
  std::uint16_t bits;
};

inline float widen(float value) { return value; }

inline float widen(Bfloat16 value) { return std::bit_cast<float>(std::uint32_t{value.bits} << 16); }

inline void narrow(float value, float& out) { out = value; }

inline void narrow(float value, Bfloat16& out) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  out.bits = static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

template <typename T>
float reduce(T* __restrict a, const T* __restrict b, std::size_t count) {
  float squares = 0;
  for (std::size_t i = 0; i < count; ++i) {
    T stored;
    narrow((widen(a[i]) + widen(b[i])) * 0.5F, stored);
    a[i] = stored;
    const float value = widen(stored);
    squares += value * value;
  }
  return squares;
}

template <typename T>
void scale(T* __restrict a, T* __restrict b, std::size_t count, float coefficient) {
  for (std::size_t i = 0; i < count; ++i) {
    T scaled;
    narrow(widen(a[i]) * coefficient, scaled);
    a[i] = scaled;
    b[i] = scaled;
  }
}

/// The norm before clipping; afterwards both buffers hold the clipped mean.
template <typename T>
double bare_step(T* a, T* b, std::size_t count, Team& team) {
  const double squares =
      team.pass(count, [=](std::size_t at, std::size_t length) { return double{reduce(a + at, b + at, length)}; });
  const double norm = std::sqrt(squares);
  const auto coefficient = static_cast<float>(std::min(1.0, kMaxNorm / norm));
  team.pass(count, [=](std::size_t at, std::size_t length) {
    scale(a + at, b + at, length, coefficient);
    return 0.0;
  });
  return norm;
}

}  // namespace gradsync::floors
