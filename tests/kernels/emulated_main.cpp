// The suite on plain C++ and on the kernels' own source, compiled by g++ for the emulation.

#include "kernels/device_kernels.hpp"
#include "kernels/reference.hpp"

namespace gradsync::kernels {

std::vector<NamedImplementation> implementations() {
  return {{"reference", false, make_reference}, {"emulated", true, make_device_kernels}};
}

std::string why_not(const NamedImplementation& /*implementation*/) { return ""; }

}  // namespace gradsync::kernels
