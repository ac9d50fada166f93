#include "kernels/library/value_call.hpp"

#include <cuda_runtime.h>

namespace gradsync::kernels {

ValueCall::ValueCall(const char* name) : name_(name) {
  constexpr unsigned kSinceVersion = 11070;
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &function_, kSinceVersion, cudaEnableDefault, &found);
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) {
    throw std::runtime_error(std::string("the driver has no ") + name);
  }
}

}  // namespace gradsync::kernels
