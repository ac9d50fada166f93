#include "kernels/measure/measure_kernel.cuh"

namespace gradsync::kernels {

cudaError_t measure_float64(const MeasureLaunch& what, cudaStream_t stream) {
  return launch_measure<Float64>(what, stream);
}

}  // namespace gradsync::kernels
