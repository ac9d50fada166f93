// The suite on a GPU.

#include "kernels/device_kernels.hpp"

namespace gradsync::kernels {

std::vector<NamedImplementation> implementations() { return {{"gpu", true, make_device_kernels}}; }

std::string why_not(const NamedImplementation& /*implementation*/) { return missing_device(); }

}  // namespace gradsync::kernels
