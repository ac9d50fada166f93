#pragma once
// What both passes over a ReduceTable are made of: a team of threads has one chunk, and each of them some of its
// accumulators.
//
// Invariant: thread t of a team reads the vectors t, t + team, … of each run, so that each of the 32 accumulators of
// the CPU engine, to which element i of a run is added by i mod 32, belongs to one thread, which adds to it in the
// engine's order; and accumulators are combined pairwise in the engine's order (service/device/math/chunk_math.hpp).

#include "arithmetic/double_double.hpp"
#include "kernels/block_reduce.cuh"
#include "kernels/format.cuh"
#include "kernels/kernels.hpp"

#include <type_traits>

namespace gradsync::kernels {

inline constexpr std::uint32_t kAccumulators = 32;
inline constexpr std::uint32_t kBlocksOfMultiprocessor = 2;  // what the registers allow without spilling
/// As in the CPU engine: the error of a square is exact from here on.
inline constexpr double kSmallestExactSquare = 0x1p-968;

enum class Sums : std::uint8_t { None, One, Two };
enum class Division : std::uint8_t { None, ByReciprocal, True };

template <typename Format>
struct Team {
  static constexpr std::uint32_t kThreadsOf = kAccumulators / Format::kPerVector;
  static constexpr std::uint32_t kInWarp = kWarp / kThreadsOf;
  /// 16-byte loads of one source that a thread has in flight.
  static constexpr std::uint32_t kInFlight = std::is_same_v<Format, Float32> ? 4 : 2;
};

struct ReducePass {
  const ReduceItem* items;  ///< of the bucket
  const SumEntry* sums;
  const std::uint32_t* members;
  const std::uint64_t* addresses;
  ReducedChunk* chunks;
  unsigned long long* nonfinite;
  std::uint32_t* differs;
  const double* scales;  ///< of the second pass alone
  double divisor;
  double p;
  std::uint32_t count;
  std::uint32_t most_sums;
  Division division;
  bool compare;
  bool minus_zeros;
};

/// The bits of a magnitude, which order as the values do; from `kInfinity` on they are of no finite value.
template <typename Format>
struct Magnitude {
  using Stored = typename Format::Stored;
  static constexpr Stored kMask = static_cast<Stored>(static_cast<Stored>(~Stored{0}) >> 1);
  static constexpr Stored kInfinity = std::is_same_v<Format, Float64> ? static_cast<Stored>(arithmetic::kDoubleInfinity)
                                      : std::is_same_v<Format, Float32>
                                          ? static_cast<Stored>(arithmetic::kFloatInfinity)
                                      : std::is_same_v<Format, BFloat16> ? static_cast<Stored>(0x7f80)
                                                                         : static_cast<Stored>(0x7c00);
};

/// A thread's share of the accumulators of a chunk.
template <typename Format>
class Accumulators {
 public:
  static constexpr bool kDouble = std::is_same_v<Format, Float64>;

  /// Σ += high + low, in accumulator `i` of the thread.
  __device__ void add(std::uint32_t i, double high, double low) {
    if constexpr (kDouble) {
      const arithmetic::DoubleDouble sum = arithmetic::two_sum(high_[i], high);
      high_[i] = sum.high;
      low_[i] += sum.low + low;
    } else {
      high_[i] += high;
    }
  }

  template <Sums kSums>
  __device__ void add_power(std::uint32_t i, double magnitude) {
    if constexpr (kSums == Sums::Two) {
      const double square = magnitude * magnitude;
      add(i, square, kDouble && square >= kSmallestExactSquare ? fma(magnitude, magnitude, -square) : 0);
    } else if constexpr (kSums == Sums::One) {
      add(i, magnitude, 0);
    }
  }

  /// The sum of the team, in its first thread. All threads of the warp must call.
  __device__ arithmetic::DoubleDouble total() const {
    arithmetic::DoubleDouble sums[Format::kPerVector];
#pragma unroll
    for (std::uint32_t i = 0; i < Format::kPerVector; ++i) {
      sums[i] = kDouble ? arithmetic::two_sum(high_[i], low_[i]) : arithmetic::DoubleDouble{high_[i], 0};
    }
#pragma unroll
    for (std::uint32_t half = kAccumulators / 2; half > 0; half /= 2) {
      const bool of_others = half >= Format::kPerVector;
#pragma unroll
      for (std::uint32_t i = 0; i < Format::kPerVector; ++i) {
        if (of_others) {
          const std::uint32_t lanes = half / Format::kPerVector;
          join(sums[i], {shuffled(sums[i].high, lanes), kDouble ? shuffled(sums[i].low, lanes) : 0});
        } else if (i < half) {
          join(sums[i], sums[i + half]);
        }
      }
    }
    if constexpr (kDouble) {
      // CPUs and GPUs may differ in what is left of a sum that overflowed.
      return sums[0].high < 0x1p1000
                 ? sums[0]
                 : arithmetic::DoubleDouble{arithmetic::bits_as<double>(arithmetic::kDoubleInfinity), 0};
    } else {
      return sums[0];
    }
  }

 private:
  __device__ static double shuffled(double value, std::uint32_t lanes) {
    return __shfl_down_sync(kAllLanes, value, lanes);
  }

  __device__ static void join(arithmetic::DoubleDouble& sum, const arithmetic::DoubleDouble& other) {
    if constexpr (kDouble) {
      sum = sum + other;
    } else {
      sum.high += other.high;
    }
  }

  double high_[Format::kPerVector] = {};
  double low_[kDouble ? Format::kPerVector : 1] = {};
};

/// Value of the team in its first thread. All threads of the warp must call.
template <typename Format, typename T, typename Join>
__device__ inline T of_team(T value, const Join& join) {
#pragma unroll
  for (std::uint32_t lanes = Team<Format>::kThreadsOf / 2; lanes > 0; lanes /= 2) {
    const T other = __shfl_down_sync(kAllLanes, value, lanes);
    value = join(value, other);
  }
  return value;
}

/// One vector of a run: its elements, and their place in inputs and outputs.
struct Place {
  std::uint64_t input = 0;
  std::uint64_t output = 0;
  std::uint32_t elements = 0;
  bool inside = false;  ///< the run has a vector before it and one after it
};

template <typename Format>
__device__ inline Place place_of(const ReduceItem& item, std::uint32_t run, std::uint32_t vector) {
  const std::uint32_t at = vector * Format::kPerVector;
  const std::uint32_t left = item.run - at;
  return {
      item.source + run * item.distance + at,
      item.first + static_cast<std::uint64_t>(run) * item.run + at,
      left < Format::kPerVector ? left : Format::kPerVector,
      vector > 0 && left >= 2 * Format::kPerVector};
}

/// The elements from `address` on, and zeros behind them. What other threads write in this pass is not read: of the
/// neighbours that an aligned vector holds, nothing is used.
template <typename Format>
__device__ inline uint4 load_at(std::uint64_t address, const Place& place) {
  if (place.elements == Format::kPerVector) {
    if (aligned_to_vector(address)) {
      return __ldcg(reinterpret_cast<const uint4*>(address));
    }
    if (place.inside) {
      const auto shift = static_cast<std::uint32_t>(address % sizeof(uint4));
      const auto* holding = reinterpret_cast<const uint4*>(address - shift);
      return shifted<Format>(__ldcg(holding), __ldcg(holding + 1), shift);
    }
  }
  return load_elements<Format>(reinterpret_cast<const typename Format::Stored*>(address), place.elements);
}

/// The same where half a vector is read at once, for results that are twice as wide.
template <typename Format>
__device__ inline uint4 load_half(std::uint64_t address, std::uint32_t elements) {
  if (2 * elements == Format::kPerVector && address % sizeof(uint2) == 0) {
    const uint2 half = __ldcg(reinterpret_cast<const uint2*>(address));
    return make_uint4(half.x, half.y, 0, 0);
  }
  return load_elements<Format>(reinterpret_cast<const typename Format::Stored*>(address), elements);
}

template <typename Format>
__device__ inline void store_at(std::uint64_t address, const uint4& vector, std::uint32_t elements) {
  if (elements == Format::kPerVector && aligned_to_vector(address)) {
    __stcg(reinterpret_cast<uint4*>(address), vector);
  } else {
    store_elements<Format>(reinterpret_cast<typename Format::Stored*>(address), vector, elements);
  }
}

template <typename Format>
constexpr std::uint64_t kWidth = sizeof(typename Format::Stored);

__device__ inline std::uint64_t address_of(const ReducePass& pass, std::uint32_t member) {
  return __ldg(pass.addresses + __ldg(pass.members + member));
}

__device__ inline SumEntry load_sum_entry(const ReducePass& pass, std::uint32_t index) {
  const uint4 words = __ldg(reinterpret_cast<const uint4*>(pass.sums + index));
  return {words.x, words.y, words.z, words.w};
}

/// How a sum is taken in this pass; equal in all threads of the team.
struct SumTask {
  SumEntry sum;
  std::uint32_t index = 0;         ///< of the sum
  std::uint32_t contributors = 0;  ///< sources that have an address
  std::uint64_t only = 0;          ///< the address of the last of them
  std::uint64_t counted = 0;       ///< what the first destination of the counted sum is; 0: nothing is compared
  bool unchanged = false;          ///< its only source is its only destination, and nothing divides it
  bool statistics = false;
};

__device__ inline SumTask task_of(const ReducePass& pass, std::uint32_t index) {
  SumTask task;
  task.index = index;
  task.sum = load_sum_entry(pass, index);
  for (std::uint32_t source = 0; source < task.sum.sources; ++source) {
    if (const std::uint64_t address = address_of(pass, task.sum.first_source + source); address != 0) {
      ++task.contributors;
      task.only = address;
    }
  }
  return task;
}

template <typename Format>
cudaError_t blocks_of(std::uint32_t chunks, std::uint32_t& blocks) {
  constexpr std::uint32_t kTeams = kThreads / Team<Format>::kThreadsOf;
  return blocks_for((chunks + kTeams - 1) / kTeams, kBlocksOfMultiprocessor, blocks);
}

template <typename Launch>
cudaError_t launch_dtype(DType dtype, const Launch& launch_as) {
  switch (dtype) {
    case DType::Float32:
      return launch_as(Float32{});
    case DType::BFloat16:
      return launch_as(BFloat16{});
    case DType::Float16:
      return launch_as(Float16{});
    case DType::Float64:
      return launch_as(Float64{});
  }
  return cudaErrorInvalidValue;
}

/// The fields that both passes over a bucket need.
inline ReducePass pass_over(const ReduceTable& table, const ReduceMemory& memory, std::uint32_t bucket, double p) {
  const ReduceBucket& what = table.buckets()[bucket];
  const DeviceReduceTable tables = table.at(memory.image);
  ReducePass pass{};
  pass.items = tables.items + what.first_chunk;
  pass.sums = tables.sums;
  pass.members = tables.members;
  pass.addresses = memory.addresses;
  pass.chunks = memory.chunks + what.first_chunk;
  pass.count = what.chunks;
  pass.p = p;
  return pass;
}

}  // namespace gradsync::kernels
