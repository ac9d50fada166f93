#include "kernels/measure/measure_kernel.cuh"

namespace gradsync::kernels {

cudaError_t measure_float16(const MeasureLaunch& what, cudaStream_t stream) {
  return launch_measure<Float16>(what, stream);
}

}  // namespace gradsync::kernels
