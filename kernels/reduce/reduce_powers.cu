// Takes the powers of a chunk's results again: those that the reducing pass does not sum, and sums that left the range.

#include "kernels/reduce/reduce_team.cuh"

namespace gradsync::kernels {

inline namespace of_reduce_powers {

/// quotient^p, where quotient is value / scale rounded, and what the division lost of it, as in the CPU engine.
__device__ inline arithmetic::DoubleDouble power_of(double value, double scale, double p) {
  const double quotient = value / scale;
  if (p == 1) {
    return {quotient, 0};
  }
  if (p == 2) {
    const double square = quotient * quotient;
    return {square, square >= kSmallestExactSquare ? fma(quotient, quotient, -square) : 0};
  }
  const double raised = pow(quotient, p);
  const double error = value > 0 && scale != 1 ? fma(-quotient, scale, value) / value : 0;
  return {raised, raised * p * error};
}

/// The first sum of the chunk with a contribution is the counted one.
__device__ inline std::uint64_t counted_output(const ReducePass& pass, const ReduceItem& item) {
  for (std::uint32_t at = 0; at < item.sums; ++at) {
    if (const SumTask task = task_of(pass, item.first_sum + at); task.contributors != 0) {
      return address_of(pass, task.sum.first_destination);
    }
  }
  return 0;
}

template <typename Format>
__global__ void __launch_bounds__(kThreads, 2) powers_kernel(const ReducePass pass) {
  constexpr std::uint32_t kTeam = Team<Format>::kThreadsOf;
  constexpr std::uint32_t kTeams = kThreads / kTeam;
  const std::uint32_t team = threadIdx.x / kTeam;
  const std::uint32_t first_of_warp = team - team % Team<Format>::kInWarp;
  for (std::uint32_t base = blockIdx.x * kTeams; base + first_of_warp < pass.count; base += gridDim.x * kTeams) {
    const std::uint32_t index = base + team;
    Accumulators<Format> powers;
    double scale = 0;
    if (index < pass.count && (scale = pass.scales[index]) != 0) {
      // The chunk as one run: its outputs lie together.
      ReduceItem item = pass.items[index];
      const std::uint64_t output = counted_output(pass, item);
      item.run *= item.runs;
      const std::uint32_t vectors = output == 0 ? 0 : (item.run + Format::kPerVector - 1) / Format::kPerVector;
      for (std::uint32_t vector = threadIdx.x % kTeam; vector < vectors; vector += kTeam) {
        const Place place = place_of<Format>(item, 0, vector);
        const uint4 loaded = load_at<Format>(output + place.output * kWidth<Format>, place);
#pragma unroll
        for (std::uint32_t i = 0; i < Format::kPerVector; ++i) {
          const double value = fabs(static_cast<double>(Format::load(stored_in<Format>(loaded, i))));
          const arithmetic::DoubleDouble power = power_of(value, scale, pass.p);
          powers.add(i, power.high, power.low);
        }
      }
    }
    const arithmetic::DoubleDouble total = powers.total();
    if (scale != 0 && threadIdx.x % kTeam == 0) {
      pass.chunks[index].high = total.high;
      pass.chunks[index].low = total.low;
    }
  }
}

template <typename Format>
cudaError_t launch_powers(const ReducePass& pass, cudaStream_t stream) {
  std::uint32_t blocks = 0;
  if (const cudaError_t error = blocks_of<Format>(pass.count, blocks); error != cudaSuccess) {
    return error;
  }
  return launch(powers_kernel<Format>, blocks, pass, stream);
}

}  // namespace of_reduce_powers

cudaError_t sum_powers(
    const ReduceTable& table,
    const Reduction& what,
    const double* scales,
    const ReduceMemory& memory,
    cudaStream_t stream
) {
  if (what.bucket >= table.buckets().size() || !(what.p >= 1) || scales == nullptr) {
    return cudaErrorInvalidValue;
  }
  const ReduceBucket& bucket = table.buckets()[what.bucket];
  if (bucket.chunks == 0) {
    return cudaSuccess;
  }
  ReducePass pass = pass_over(table, memory, what.bucket, what.p);
  pass.scales = scales + bucket.first_chunk;
  return launch_dtype(bucket.dtype, [&](auto format) { return launch_powers<decltype(format)>(pass, stream); });
}

}  // namespace gradsync::kernels
