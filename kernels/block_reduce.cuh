#pragma once
// Sums over the threads of a warp and of a block, in a fixed order.

#include "kernels/power_sum.hpp"
#include "kernels/work_loop.cuh"

namespace gradsync::kernels {

inline constexpr std::uint32_t kAllLanes = 0xffff'ffffU;

/// What one thread learnt of one piece. `low` is zero except for sums that are kept in pairs of doubles.
struct ThreadSum {
  double high = 0;
  double low = 0;
  double maximum = 0;
  std::uint32_t nonfinite = 0;
  std::uint32_t nan = 0;
  std::uint64_t fingerprint = 0;
};

/// The sum of a warp's threads, in lane 0: lane i with i + 16, …, then 0 with 1. `kPairs`: their low parts count.
template <bool kPairs, bool kFingerprint>
__device__ inline PowerSum warp_sum(const ThreadSum& thread) {
  double high = thread.high;
  double low = kPairs ? thread.low : 0;
  double maximum = thread.maximum;
  std::uint64_t fingerprint = thread.fingerprint;
#pragma unroll
  for (std::uint32_t offset = kWarp / 2; offset > 0; offset /= 2) {
    const double other = __shfl_down_sync(kAllLanes, high, offset);
    if constexpr (kPairs) {
      add_pair(high, low, other, __shfl_down_sync(kAllLanes, low, offset));
    } else {
      high += other;
    }
    const double largest = __shfl_down_sync(kAllLanes, maximum, offset);
    maximum = largest > maximum ? largest : maximum;
    if constexpr (kFingerprint) {
      fingerprint +=
          static_cast<std::uint64_t>(__shfl_down_sync(kAllLanes, static_cast<unsigned long long>(fingerprint), offset));
    }
  }
  return {
      high,
      low,
      1,
      maximum,
      __reduce_add_sync(kAllLanes, thread.nonfinite),
      __reduce_add_sync(kAllLanes, thread.nan),
      fingerprint};
}

struct WarpSums {
  PowerSum of[kWarps];
};

/// The sum of a block's threads, in thread 0. Its barrier also orders what threads read before with what thread 0
/// writes after; the caller has a barrier before the next call.
template <bool kPairs, bool kFingerprint>
__device__ inline PowerSum block_sum(const ThreadSum& thread) {
  GRADSYNC_SHARED(WarpSums, warps);
  const PowerSum own = warp_sum<kPairs, kFingerprint>(thread);
  if (threadIdx.x % kWarp == 0) {
    warps.of[threadIdx.x / kWarp] = own;
  }
  __syncthreads();
  PowerSum sum = own;
  if (threadIdx.x == 0) {
    for (std::uint32_t warp = 1; warp < kWarps; ++warp) {
      add_part(sum, warps.of[warp]);
    }
  }
  return sum;
}

struct HalfSums {
  PowerSum of[kThreads / 2];
};

/// One for all trees of a kernel.
__device__ inline HalfSums& half_sums() {
  GRADSYNC_SHARED(HalfSums, sums);
  return sums;
}

/// add(sum, other) over the threads, pairwise: thread i with i + 128, …, then 0 with 1. The result is in thread 0.
template <typename Add>
__device__ inline PowerSum tree_sum(PowerSum sum, const Add& add) {
  HalfSums& others = half_sums();
  for (std::uint32_t half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x >= half && threadIdx.x < 2 * half) {
      others.of[threadIdx.x - half] = sum;
    }
    __syncthreads();
    if (threadIdx.x < half) {
      add(sum, others.of[threadIdx.x]);
    }
  }
  return sum;
}

/// Written by other blocks of this launch: not through the read-only cache.
__device__ inline PowerSum load_sum(const PowerSum* sum) {
  return {
      __ldcg(&sum->high),
      __ldcg(&sum->low),
      __ldcg(&sum->scale),
      __ldcg(&sum->maximum),
      static_cast<std::uint64_t>(__ldcg(reinterpret_cast<const unsigned long long*>(&sum->nonfinite))),
      static_cast<std::uint64_t>(__ldcg(reinterpret_cast<const unsigned long long*>(&sum->nan))),
      static_cast<std::uint64_t>(__ldcg(reinterpret_cast<const unsigned long long*>(&sum->fingerprint)))};
}

}  // namespace gradsync::kernels
