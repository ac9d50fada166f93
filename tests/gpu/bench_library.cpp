// A clip step behind a C interface, so that bench_torch.py can time it beside torch in one process, on torch's own
// memory and stream. Functions answer 0, or 1 after writing the error to stderr.

#include "gpu/clip_step.hpp"

#include <cstdint>
#include <cstdio>
#include <exception>

using gradsync::arithmetic::ClipMode;
using gradsync::arithmetic::NormType;
using gradsync::kernels::ClipStep;
using gradsync::kernels::DType;
using gradsync::kernels::PlacedTensor;

namespace {

template <typename Body>
int guarded(const Body& body) {
  try {
    body();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_bench_library: %s\n", error.what());
    return 1;
  }
}

}  // namespace

extern "C" {

/// Null after an error. `dtype` as in kernels/dtype.hpp.
ClipStep* clip_step_new(
    const std::uint64_t* addresses,
    const std::uint64_t* counts,
    std::uint64_t tensors,
    int dtype,
    double max_norm,
    int torch_mode
) {
  ClipStep* step = nullptr;
  guarded([&] {
    std::vector<PlacedTensor> placed;
    for (std::uint64_t i = 0; i < tensors; ++i) {
      placed.push_back({reinterpret_cast<void*>(addresses[i]), counts[i], static_cast<DType>(dtype), 0, 0});
    }
    const ClipMode mode = torch_mode != 0 ? ClipMode::Torch : ClipMode::Strict;
    step = new ClipStep(placed, {max_norm, mode, NormType::Float32});
  });
  return step;
}

void clip_step_delete(ClipStep* step) { delete step; }

int clip_step_measure(ClipStep* step, void* stream) {
  return guarded([&] { step->enqueue_measure(static_cast<cudaStream_t>(stream)); });
}

int clip_step_clip(ClipStep* step, double loss_scale, void* stream) {
  return guarded([&] { step->enqueue_clip(static_cast<cudaStream_t>(stream), loss_scale); });
}

/// Waits for the device.
int clip_step_outcome(ClipStep* step, double* norm, double* coefficient) {
  return guarded([&] {
    gradsync::kernels::must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    *norm = step->outcome().norm;
    *coefficient = step->outcome().coefficient;
  });
}
}
