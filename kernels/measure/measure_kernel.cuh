#pragma once
// The measuring pass of one dtype and power.
//
//  1. A block claims an item: one piece of a large tensor for all its threads, or a run of small tensors, one per warp.
//  2. Threads sum their vectors (accumulate.cuh); warp and block add them in a fixed order.
//  3. A tensor of one piece is done. Else the sum goes to the piece's record, and a launch after those of the dtypes
//     (measure.cu) adds the records of each tensor.
//  4. The last block of the last of these launches adds the tensors of each norm group; that of each pass over the
//     counters zeroes them.

#include "kernels/measure/accumulate.cuh"

namespace gradsync::kernels {

struct MeasurePass {
  Items work;
  const Piece* small;
  const TensorEntry* entries;
  const std::uint32_t* group_first;
  const std::uint32_t* group_tensors;
  Scratch scratch;
  PowerSum* tensors;
  PowerSum* groups;
  double p;
  std::uint32_t norm_groups;  ///< 0: a later launch adds the groups
  std::uint32_t blocks;       ///< of all launches of the pass
  bool fingerprint;
  bool again;
};

/// First: every tensor. Again: those whose plain sum left the range, divided by what `rescaling_divisor` says.
enum class Round : std::uint8_t { First, Again };

/// Blocks that a multiprocessor holds at a time: what the registers allow without spilling.
constexpr std::uint32_t measure_blocks(Power power) { return power == Power::Any ? 2 : 3; }

template <typename FormatType, Power kPowerOf, bool kFingerprintOf, Round kRoundOf>
struct MeasureKind {
  using Format = FormatType;
  static constexpr Power kPower = kPowerOf;
  static constexpr bool kFingerprint = kFingerprintOf;
  static constexpr bool kAgain = kRoundOf == Round::Again;
  static constexpr bool kDouble = std::is_same_v<Format, Float64>;
  static constexpr bool kPairs = kDouble || kPower == Power::Any;
  static constexpr bool kFast = kPower != Power::Any;
  /// 16-byte loads that a thread has in flight before it uses the first.
  static constexpr std::uint32_t kInFlight = kFingerprint || kDouble ? 4 : 8;
};

template <typename Kind>
__device__ inline auto make_fast_sum(double divisor) {
  if constexpr (Kind::kDouble) {
    return FastDoubleSum<Kind::kPower, Kind::kAgain>(divisor);
  } else {
    return FastSum<typename Kind::Format, Kind::kPower>();
  }
}

template <typename Format>
__device__ inline const typename Format::Stored* elements_of(const Share& share, std::uint32_t vector) {
  return reinterpret_cast<const typename Format::Stored*>(share.address) + vector * Format::kPerVector;
}

/// One whole vector. Where the piece is not aligned, a vector with neighbours on both sides is cut out of the two
/// aligned ones that hold it; no byte outside the piece is read.
template <typename Format, bool kAligned>
__device__ inline uint4 load_vector(const Share& share, std::uint32_t vector) {
  if constexpr (kAligned) {
    return __ldg(reinterpret_cast<const uint4*>(share.address) + vector);
  } else {
    if (vector == 0 || (vector + 2) * Format::kPerVector > share.count) {
      return load_elements<Format>(elements_of<Format>(share, vector), Format::kPerVector);
    }
    const auto shift = static_cast<std::uint32_t>(share.address % sizeof(uint4));
    const auto* holding = reinterpret_cast<const uint4*>(share.address - shift) + vector;
    return shifted<Format>(__ldg(holding), __ldg(holding + 1), shift);
  }
}

template <typename Kind, bool kAligned>
__device__ inline ThreadSum sum_share(const Share& share, std::uint64_t first, double p, double divisor) {
  using Format = typename Kind::Format;
  constexpr std::uint32_t kPerVector = Format::kPerVector;
  constexpr std::uint32_t kInFlight = kAligned ? Kind::kInFlight : Kind::kInFlight / 2;
  std::uint64_t fingerprint = 0;
  [[maybe_unused]] auto fast = make_fast_sum<Kind>(divisor);
  [[maybe_unused]] const std::uint64_t first_vector = first / kPerVector;
  const auto add = [&](const uint4& vector, std::uint32_t index) {
    if constexpr (Kind::kFast) {
      fast.add(vector);
    }
    if constexpr (Kind::kFingerprint) {
      fingerprint += arithmetic::fingerprint_vector(vector.x, vector.y, vector.z, vector.w, first_vector + index);
    }
  };
  if constexpr (Kind::kFast || Kind::kFingerprint) {
    const std::uint32_t whole = share.count / kPerVector;
    std::uint32_t index = share.own;
    for (; index + (kInFlight - 1) * share.stride < whole; index += kInFlight * share.stride) {
      uint4 vectors[kInFlight];
#pragma unroll
      for (std::uint32_t i = 0; i < kInFlight; ++i) {
        vectors[i] = load_vector<Format, kAligned>(share, index + i * share.stride);
      }
#pragma unroll
      for (std::uint32_t i = 0; i < kInFlight; ++i) {
        add(vectors[i], index + i * share.stride);
      }
    }
    if (index < whole) {
      // The rest in one go: zeros stand for what is not there.
      uint4 vectors[kInFlight];
#pragma unroll
      for (std::uint32_t i = 0; i < kInFlight; ++i) {
        const std::uint32_t at = index + i * share.stride;
        vectors[i] = at < whole ? load_vector<Format, kAligned>(share, at) : make_uint4(0, 0, 0, 0);
      }
#pragma unroll
      for (std::uint32_t i = 0; i < kInFlight; ++i) {
        if (!Kind::kFingerprint || index + i * share.stride < whole) {
          add(vectors[i], index + i * share.stride);
        }
      }
    }
    if (whole % share.stride == share.own && share.count % kPerVector != 0) {
      add(load_elements<Format>(elements_of<Format>(share, whole), share.count % kPerVector), whole);
    }
  }
  ThreadSum sum;
  bool done = false;
  if constexpr (Kind::kFast) {
    done = fast.finish(sum);
  }
  if (!done) {
    sum = sum_carefully<Format, Kind::kPower>(share, p, divisor);
  }
  sum.fingerprint = fingerprint;
  return sum;
}

/// Not inlined, so that its registers do not make the aligned loop spill.
template <typename Kind>
__device__ __noinline__ ThreadSum sum_misaligned(Share share, std::uint64_t first, double p, double divisor) {
  return sum_share<Kind, false>(share, first, p, divisor);
}

template <typename Kind>
__device__ inline ThreadSum sum_piece(
    const MeasurePass& pass, const Piece& piece, std::uint32_t own, std::uint32_t stride, double divisor
) {
  const std::uint64_t address = address_of(pass.work, piece);
  const Share share{address, address == 0 ? 0 : piece.count, own, stride};
  return aligned_to_vector(share.address) ? sum_share<Kind, true>(share, piece.first, pass.p, divisor)
                                          : sum_misaligned<Kind>(share, piece.first, pass.p, divisor);
}

/// The sum of a whole tensor: by one thread.
__device__ inline void put_tensor(const MeasurePass& pass, std::uint32_t tensor, PowerSum sum, double divisor) {
  sum.scale = divisor;
  if (pass.again) {
    sum.fingerprint = load_sum(pass.tensors + tensor).fingerprint;
  } else if (pass.fingerprint) {
    sum.fingerprint += arithmetic::fingerprint_length(pass.entries[tensor].count * pass.entries[tensor].element_bytes);
  }
  pass.tensors[tensor] = sum;
}

/// 1 in the first round; in the second what the first one asks for, or 0: leave this tensor alone.
__device__ inline double divisor_of(const MeasurePass& pass, std::uint32_t tensor) {
  const PowerSum plain = load_sum(pass.tensors + tensor);
  return needs_rescaling(plain, pass.p) ? rescaling_divisor(plain.maximum, pass.p) : 0;
}

template <typename Kind>
__device__ inline PowerSum sum_of_warp(
    const MeasurePass& pass, const Piece& piece, std::uint32_t own, std::uint32_t stride, double divisor
) {
  const ThreadSum thread = sum_piece<Kind>(pass, piece, own, stride, divisor);
  return warp_sum<Kind::kPairs, Kind::kFingerprint>(thread);
}

template <typename Kind>
__device__ inline void measure_run(const MeasurePass& pass, const Piece& run) {
  for (std::uint32_t i = threadIdx.x / kWarp; i < run.count; i += kWarps) {
    const Piece piece = load_piece(pass.small + run.first + i);
    const double divisor = Kind::kAgain ? divisor_of(pass, piece.tensor) : 1;
    if (divisor == 0) {
      continue;
    }
    const PowerSum sum = sum_of_warp<Kind>(pass, piece, threadIdx.x % kWarp, kWarp, divisor);
    if (threadIdx.x % kWarp == 0) {
      put_tensor(pass, piece.tensor, sum, divisor);
    }
  }
}

__device__ inline void put_record(const MeasurePass& pass, std::uint32_t record, const PowerSum& sum) {
  pass.scratch.records[record] = {
      sum.high, sum.low, sum.maximum, static_cast<std::uint32_t>(sum.nonfinite), static_cast<std::uint32_t>(sum.nan)};
  if (pass.fingerprint) {
    pass.scratch.fingerprints[record] = sum.fingerprint;
  }
}

/// By the last block of the pass.
__device__ __noinline__ inline void add_groups(const MeasurePass& pass) {
  const double p = pass.p;
  for (std::uint32_t group = 0; group < pass.norm_groups; ++group) {
    PowerSum own = empty_sum();
    for (std::uint32_t i = pass.group_first[group] + threadIdx.x; i < pass.group_first[group + 1]; i += kThreads) {
      add_tensor(own, load_sum(pass.tensors + pass.group_tensors[i]), p);
    }
    const PowerSum sum = tree_sum(own, [p](PowerSum& to, const PowerSum& other) { add_tensor(to, other, p); });
    if (threadIdx.x == 0) {
      pass.groups[group] = sum;
    }
  }
}

template <typename Kind>
__global__ void __launch_bounds__(kThreads, measure_blocks(Kind::kPower)) measure_kernel(const MeasurePass pass) {
  GRADSYNC_SHARED(WarpSums, warps);
  // The divisor of the piece at hand, equal in all threads.
  double divisor = 1;
  for_each_item<Order::Forwards>(
      pass.work,
      [&](const Piece& piece, std::uint32_t parity) {
        if (piece.pieces == 0) {
          measure_run<Kind>(pass, piece);
          return;
        }
        divisor = Kind::kAgain ? divisor_of(pass, piece.tensor) : 1;
        if (divisor != 0) {
          const PowerSum sum = sum_of_warp<Kind>(pass, piece, threadIdx.x, kThreads, divisor);
          if (threadIdx.x % kWarp == 0) {
            warps.of[parity][threadIdx.x / kWarp] = sum;
          }
        }
      },
      [&](const Piece& piece, std::uint32_t parity) {
        if (piece.pieces == 0 || divisor == 0 || threadIdx.x != 0) {
          return;
        }
        const PowerSum sum = sum_of_warps<Kind::kPairs>(warps.of[parity]);
        if (piece.pieces == 1) {
          put_tensor(pass, piece.tensor, sum, divisor);
        } else {
          put_record(pass, piece.record, sum);
        }
      }
  );
  if (arrive_last(&pass.scratch.counters->arrived, pass.blocks)) {
    add_groups(pass);
    reset(pass.scratch.counters);
  }
}

/// One launch of the pass, `blocks` of it. Defined per dtype in measure_<dtype>.cu.
struct MeasureLaunch {
  MeasurePass pass;
  Power power;
  Round round;
  std::uint32_t blocks;
};

template <typename Format, Power kPower>
cudaError_t launch_measure(const MeasureLaunch& what, cudaStream_t stream) {
  if constexpr (kPower == Power::Any || (std::is_same_v<Format, Float64> && kPower != Power::Maximum)) {
    if (what.round == Round::Again) {
      return launch(measure_kernel<MeasureKind<Format, kPower, false, Round::Again>>, what.blocks, what.pass, stream);
    }
  }
  return what.pass.fingerprint
             ? launch(measure_kernel<MeasureKind<Format, kPower, true, Round::First>>, what.blocks, what.pass, stream)
             : launch(measure_kernel<MeasureKind<Format, kPower, false, Round::First>>, what.blocks, what.pass, stream);
}

template <typename Format>
cudaError_t launch_measure(const MeasureLaunch& what, cudaStream_t stream) {
  switch (what.power) {
    case Power::One:
      return launch_measure<Format, Power::One>(what, stream);
    case Power::Two:
      return launch_measure<Format, Power::Two>(what, stream);
    case Power::Any:
      return launch_measure<Format, Power::Any>(what, stream);
    case Power::Maximum:
      return launch_measure<Format, Power::Maximum>(what, stream);
  }
  return cudaErrorInvalidValue;
}

cudaError_t measure_float32(const MeasureLaunch& what, cudaStream_t stream);
cudaError_t measure_bfloat16(const MeasureLaunch& what, cudaStream_t stream);
cudaError_t measure_float16(const MeasureLaunch& what, cudaStream_t stream);
cudaError_t measure_float64(const MeasureLaunch& what, cudaStream_t stream);

}  // namespace gradsync::kernels
