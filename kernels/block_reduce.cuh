#pragma once
// Sums over the threads of a warp and of a block, in a fixed order.

#include "kernels/power_sum.hpp"
#include "kernels/work_loop.cuh"

namespace gradsync::kernels {

inline constexpr std::uint32_t kAllLanes = 0xffff'ffffU;

/// The sums of one thread over one piece. `low` is zero except for sums that are kept in pairs of doubles.
struct ThreadSum {
  double high = 0;
  double low = 0;
  double maximum = 0;
  std::uint32_t nonfinite = 0;
  std::uint32_t nan = 0;
  std::uint64_t fingerprint = 0;
};

__device__ inline std::uint64_t shuffled_down(std::uint64_t value, std::uint32_t offset) {
  return __shfl_down_sync(kAllLanes, static_cast<unsigned long long>(value), offset);
}

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

/// One sum per warp, twice: for the piece that is gathered and the one that is finished (work_loop.cuh).
struct WarpSums {
  PowerSum of[2][kWarps];
};

/// The warps' sums added in their order.
template <bool kPairs>
__device__ inline PowerSum sum_of_warps(const PowerSum (&warps)[kWarps]) {
  PowerSum sum = warps[0];
#pragma unroll
  for (std::uint32_t warp = 1; warp < kWarps; ++warp) {
    if constexpr (kPairs) {
      add_pair(sum.high, sum.low, warps[warp].high, warps[warp].low);
    } else {
      sum.high += warps[warp].high;
    }
    sum.maximum = warps[warp].maximum > sum.maximum ? warps[warp].maximum : sum.maximum;
    sum.nonfinite += warps[warp].nonfinite;
    sum.nan += warps[warp].nan;
    sum.fingerprint += warps[warp].fingerprint;
  }
  return sum;
}

/// add(sum, other) over the lanes of a warp, in the order of warp_sum.
template <typename Add>
__device__ inline PowerSum warp_tree_sum(PowerSum sum, const Add& add) {
#pragma unroll
  for (std::uint32_t offset = kWarp / 2; offset > 0; offset /= 2) {
    add(sum,
        {__shfl_down_sync(kAllLanes, sum.high, offset),
         __shfl_down_sync(kAllLanes, sum.low, offset),
         __shfl_down_sync(kAllLanes, sum.scale, offset),
         __shfl_down_sync(kAllLanes, sum.maximum, offset),
         shuffled_down(sum.nonfinite, offset),
         shuffled_down(sum.nan, offset),
         shuffled_down(sum.fingerprint, offset)});
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

// Results of other blocks of this launch are not read through the read-only cache.

__device__ inline std::uint64_t load_fresh(const std::uint64_t* from) {
  return __ldcg(reinterpret_cast<const unsigned long long*>(from));
}

__device__ inline PowerSum load_sum(const PowerSum* sum) {
  return {
      __ldcg(&sum->high),
      __ldcg(&sum->low),
      __ldcg(&sum->scale),
      __ldcg(&sum->maximum),
      load_fresh(&sum->nonfinite),
      load_fresh(&sum->nan),
      load_fresh(&sum->fingerprint)};
}

/// A record as a part of its tensor, without its fingerprint.
__device__ inline PowerSum load_record(const Record* record) {
  const uint4* words = reinterpret_cast<const uint4*>(record);
  const uint4 a = __ldcg(words);
  const uint4 b = __ldcg(words + 1);
  const auto pair = [](std::uint32_t low, std::uint32_t high) {
    return arithmetic::bits_as<double>(low | (static_cast<std::uint64_t>(high) << 32));
  };
  return {pair(a.x, a.y), pair(a.z, a.w), 1, pair(b.x, b.y), b.z, b.w, 0};
}

}  // namespace gradsync::kernels
