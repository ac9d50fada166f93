#pragma once
// Tensors for the conformance suite: which values, how many, how aligned.

#include "kernels/reference.hpp"

#include <string>

namespace gradsync::kernels {

enum class Values : std::uint8_t {
  Normal,    ///< about 1e-3, both signs
  Constant,  ///< 0.1 everywhere: rounding errors do not cancel
  Tiny,      ///< squares underflow in the dtype's own arithmetic; subnormal ones included
  Huge,      ///< squares overflow there
  Extreme,   ///< from the smallest to the largest value of the dtype
  Zero,
  Nonfinite,  ///< Normal with NaN, infinities, and both at the ends
};

std::string name_of(DType dtype);
std::string name_of(Values values);
std::string name_of_power(double p);

/// The same values for the same arguments, everywhere.
HostTensor make_tensor(DType dtype, std::uint64_t count, Values values, std::size_t offset_elements = 0);

/// Element counts around every boundary of the kernels: vectors, warps, small tensors, loop iterations, pieces.
std::vector<std::uint64_t> interesting_counts(DType dtype);

}  // namespace gradsync::kernels
