#pragma once
// A 64-bit fingerprint of a tensor's bytes, for comparing copies that must be equal. Not for secrets.
//
// The bytes are read as vectors of four little-endian 32-bit words, the last one padded with zeros:
//   fingerprint = Σ_v mix(w0·K0 + w1·K1 + w2·K2 + w3·K3 + v·G)  +  mix(bytes ^ L)        (mod 2^64)
// The keys are odd and `mix` is a bijection, so a change of one word always changes the fingerprint, as does nearly
// every other one. The sum has no order: tiling and thread count do not matter.

#include "arithmetic/host_device.hpp"

namespace gradsync::arithmetic {

GRADSYNC_HD inline std::uint64_t mix_fingerprint(std::uint64_t value) {
  // The finaliser of splitmix64.
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

GRADSYNC_HD inline std::uint64_t fingerprint_vector(
    std::uint32_t w0, std::uint32_t w1, std::uint32_t w2, std::uint32_t w3, std::uint64_t vector
) {
  return mix_fingerprint(
      w0 * 0x9e3779b185ebca87ULL + w1 * 0xc2b2ae3d27d4eb4fULL + w2 * 0x165667b19e3779f9ULL +
      w3 * 0x85ebca77c2b2ae63ULL + vector * 0x9e3779b97f4a7c15ULL
  );
}

/// Added once per tensor.
GRADSYNC_HD inline std::uint64_t fingerprint_length(std::uint64_t bytes) {
  return mix_fingerprint(bytes ^ 0x27d4eb2f165667c5ULL);
}

}  // namespace gradsync::arithmetic
