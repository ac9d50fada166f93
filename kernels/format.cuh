#pragma once
// The layout of each dtype in a 16-byte vector, and how elements get in and out of it.

#include "arithmetic/half.hpp"

#include <cuda_runtime.h>

namespace gradsync::kernels {

struct Float32 {
  using Stored = std::uint32_t;
  using Value = float;
  static constexpr std::uint32_t kPerVector = 4;

  __device__ static float load(Stored stored) { return arithmetic::bits_as<float>(stored); }

  __device__ static Stored store(float value) {
    return value != value ? arithmetic::kFloatNan : arithmetic::bits_as<Stored>(value);
  }
};

struct BFloat16 {
  using Stored = std::uint16_t;
  using Value = float;
  static constexpr std::uint32_t kPerVector = 8;

  __device__ static float load(Stored stored) { return arithmetic::bfloat16_to_float(stored); }

  __device__ static Stored store(float value) { return arithmetic::float_to_bfloat16(value); }
};

struct Float16 {
  using Stored = std::uint16_t;
  using Value = float;
  static constexpr std::uint32_t kPerVector = 8;

  __device__ static float load(Stored stored) { return arithmetic::float16_to_float(stored); }

  __device__ static Stored store(float value) { return arithmetic::float_to_float16(value); }
};

struct Float64 {
  using Stored = std::uint64_t;
  using Value = double;
  static constexpr std::uint32_t kPerVector = 2;

  __device__ static double load(Stored stored) { return arithmetic::bits_as<double>(stored); }

  __device__ static Stored store(double value) {
    return value != value ? arithmetic::kDoubleNan : arithmetic::bits_as<Stored>(value);
  }
};

/// Element i of a vector; i is a constant after unrolling.
template <typename Format>
__device__ inline typename Format::Stored stored_in(const uint4& vector, std::uint32_t i) {
  const auto word = [&](std::uint32_t k) {
    return k == 0 ? vector.x : k == 1 ? vector.y : k == 2 ? vector.z : vector.w;
  };
  if constexpr (sizeof(typename Format::Stored) == 8) {
    return word(2 * i) | (static_cast<std::uint64_t>(word(2 * i + 1)) << 32);
  } else if constexpr (sizeof(typename Format::Stored) == 4) {
    return word(i);
  } else {
    return static_cast<std::uint16_t>(i % 2 == 0 ? word(i / 2) : word(i / 2) >> 16);
  }
}

/// Sets element i of a vector that holds zero there.
template <typename Format>
__device__ inline void put_stored(uint4& vector, std::uint32_t i, typename Format::Stored stored) {
  const auto put = [&](std::uint32_t k, std::uint32_t bits) {
    (k == 0 ? vector.x : k == 1 ? vector.y : k == 2 ? vector.z : vector.w) |= bits;
  };
  if constexpr (sizeof(typename Format::Stored) == 8) {
    put(2 * i, static_cast<std::uint32_t>(stored));
    put(2 * i + 1, static_cast<std::uint32_t>(stored >> 32));
  } else if constexpr (sizeof(typename Format::Stored) == 4) {
    put(i, stored);
  } else {
    put(i / 2, static_cast<std::uint32_t>(stored) << (16 * (i % 2)));
  }
}

// Loads and stores name the L2 cache, which also tells the compiler that the address is global.

/// `count` elements, at most a vector, read one by one; the rest is zero.
template <typename Format>
__device__ inline uint4 load_elements(const typename Format::Stored* from, std::uint32_t count) {
  uint4 vector = make_uint4(0, 0, 0, 0);
#pragma unroll
  for (std::uint32_t i = 0; i < Format::kPerVector; ++i) {
    if (i < count) {
      put_stored<Format>(vector, i, __ldcg(from + i));
    }
  }
  return vector;
}

template <typename Format>
__device__ inline void store_elements(typename Format::Stored* to, const uint4& vector, std::uint32_t count) {
#pragma unroll
  for (std::uint32_t i = 0; i < Format::kPerVector; ++i) {
    if (i < count) {
      __stcg(to + i, stored_in<Format>(vector, i));
    }
  }
}

/// The 16 bytes from byte `shift` on of two vectors that follow each other; it is below 16, and a whole element.
template <typename Format>
__device__ inline uint4 shifted(const uint4& a, const uint4& b, std::uint32_t shift) {
  std::uint32_t words[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
  const bool by_two = (shift & 8) != 0;
#pragma unroll
  for (std::uint32_t i = 0; i < 6; ++i) {
    words[i] = by_two ? words[i + 2] : words[i];
  }
  const bool by_one = (shift & 4) != 0;
#pragma unroll
  for (std::uint32_t i = 0; i < 5; ++i) {
    words[i] = by_one ? words[i + 1] : words[i];
  }
  if constexpr (sizeof(typename Format::Stored) == 2) {
    const std::uint32_t bits = (shift & 2) * 8;
#pragma unroll
    for (std::uint32_t i = 0; i < 4; ++i) {
      const std::uint64_t both = words[i] | (static_cast<std::uint64_t>(words[i + 1]) << 32);
      words[i] = static_cast<std::uint32_t>(both >> bits);
    }
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

__device__ inline bool aligned_to_vector(std::uint64_t address) { return address % sizeof(uint4) == 0; }

}  // namespace gradsync::kernels
