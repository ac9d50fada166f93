#include "kernels/measure/measure_kernel.cuh"

namespace gradsync::kernels {

cudaError_t measure_bfloat16(const MeasureLaunch& what, cudaStream_t stream) {
  return launch_measure<BFloat16>(what, stream);
}

}  // namespace gradsync::kernels
