// The reducing pass between 16 bits and float32: the partial sums of a node's ranks, which travel in float32, and the
// sums of all nodes, which are rounded for the ranks. The first need no statistics.

#include "kernels/reduce/reduce_kernel.cuh"

namespace gradsync::kernels {

cudaError_t launch_mixed(const ReducePass& pass, DType from, DType to, cudaStream_t stream) {
  if (from == DType::Float32 && to == DType::BFloat16) {
    return launch_reduce<Float32, BFloat16>(pass, stream);
  }
  if (from == DType::Float32 && to == DType::Float16) {
    return launch_reduce<Float32, Float16>(pass, stream);
  }
  if (from == DType::BFloat16 && to == DType::Float32) {
    return launch_reduce<BFloat16, Float32>(pass, stream);
  }
  if (from == DType::Float16 && to == DType::Float32) {
    return launch_reduce<Float16, Float32>(pass, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace gradsync::kernels
