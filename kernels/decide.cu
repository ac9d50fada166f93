#include "kernels/kernels.hpp"
#include "kernels/work_loop.cuh"

namespace gradsync::kernels {

// A name, where C++ would need none: nvcc puts the path of the file into the symbols of an unnamed namespace.
inline namespace of_decide {

struct Decision {
  const PowerSum* sums;
  const arithmetic::ClipLimit* rules;
  ClipOutcome* outcomes;
  double p;
  double scale;
  std::uint32_t sums_per_group;
  std::uint32_t clip_groups;
};

/// One thread per clip group: there are few, and few sums in each.
__global__ void __launch_bounds__(kThreads) decide_kernel(const Decision decision) {
  const std::uint32_t group = blockIdx.x * kThreads + threadIdx.x;
  if (group >= decision.clip_groups) {
    return;
  }
  const PowerSum* sums = decision.sums + static_cast<std::uint64_t>(group) * decision.sums_per_group;
  PowerSum sum = empty_sum();
  for (std::uint32_t i = 0; i < decision.sums_per_group; ++i) {
    add_tensor(sum, sums[i], decision.p);
  }
  decision.outcomes[group] = clip(decision.rules[group], norm_of(sum, decision.p), decision.scale, sum.nonfinite);
}

}  // namespace of_decide

cudaError_t find_code() {
  cudaFuncAttributes attributes{};
  return cudaFuncGetAttributes(&attributes, decide_kernel);
}

cudaError_t decide(
    const PowerSum* sums,
    std::uint32_t sums_per_group,
    const arithmetic::ClipLimit* rules,
    std::uint32_t clip_groups,
    double p,
    double scale,
    ClipOutcome* outcomes,
    cudaStream_t stream
) {
  if (!(p >= 1) || !(scale > 0) || !arithmetic::is_finite(scale)) {
    return cudaErrorInvalidValue;
  }
  if (clip_groups == 0) {
    return cudaSuccess;
  }
  const Decision decision{sums, rules, outcomes, p, scale, sums_per_group, clip_groups};
  return launch(decide_kernel, (clip_groups + kThreads - 1) / kThreads, decision, stream);
}

}  // namespace gradsync::kernels
