#include "kernels/measure/measure_kernel.cuh"

namespace gradsync::kernels {

cudaError_t measure_float32(const MeasureLaunch& what, cudaStream_t stream) {
  return launch_measure<Float32>(what, stream);
}

}  // namespace gradsync::kernels
