#pragma once
// The passes in plain C++: one loop per definition, in long double where the kernels are allowed to differ.

#include "kernels/implementation.hpp"

namespace gradsync::kernels {

std::unique_ptr<Implementation> make_reference();

/// Σ(|g| / scale)^p of a tensor, without any rounding that matters.
long double exact_power_sum(const HostTensor& tensor, double p, double scale = 1);

/// Element i, as a double: exact for every dtype.
double element(const HostTensor& tensor, std::uint64_t i);

/// Element i = value, rounded as the kernels round.
void set_element(HostTensor& tensor, std::uint64_t i, double value);

}  // namespace gradsync::kernels
