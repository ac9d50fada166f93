#pragma once
// The reducing pass: each sum of a bucket over its sources, in order, divided, rounded once and written to its
// destinations, with the statistics of the results, in one read of each source and one write of each destination.
// `In` is the format of sources, `Format` that of results, whose vectors share out the work.
//
//  1. A team of threads reads a chunk, adds and counts (reduce_team.cuh).
//  2. Sums of a part that are replicas are taken one after the other by the same threads, so that what the first one
//     wrote can be read again and compared with the others.

#include "kernels/reduce/reduce_team.cuh"

namespace gradsync::kernels {

/// What a thread knows of the values of one sum.
template <typename Format>
struct Counts {
  typename Format::Stored largest = 0;
  std::uint32_t nonfinite = 0;
  std::uint32_t nan = 0;
};

/// Inputs of a sum in this pass. By value, so that what is known of the pass stays in registers.
struct Inputs {
  const std::uint32_t* places;
  const std::uint64_t* addresses;
  unsigned long long* nonfinite;
  std::uint32_t count;
};

/// Out of line: values that are not finite. Counts them where they come from.
template <typename In>
__device__ __noinline__ void count_inputs(Inputs inputs, std::uint64_t first, std::uint32_t elements) {
  using Bits = Magnitude<In>;
  for (std::uint32_t source = 0; source < inputs.count; ++source) {
    const std::uint32_t place = __ldg(inputs.places + source);
    const std::uint64_t address = __ldg(inputs.addresses + place);
    if (address == 0) {
      continue;
    }
    const auto* from = reinterpret_cast<const typename In::Stored*>(address) + first;
    std::uint32_t found = 0;
    for (std::uint32_t i = 0; i < elements; ++i) {
      found += static_cast<typename In::Stored>(__ldcg(from + i) & Bits::kMask) >= Bits::kInfinity ? 1 : 0;
    }
    if (found != 0) {
      atomicAdd(inputs.nonfinite + place, static_cast<unsigned long long>(found));
    }
  }
}

/// The elements of one vector of results, as they lie in a source.
template <typename In, typename Format>
struct Loaded {
  static constexpr std::uint32_t kVectors = kWidth<In> > kWidth<Format> ? kWidth<In> / kWidth<Format> : 1;
  uint4 vectors[kVectors];

  __device__ typename In::Value value(std::uint32_t i) const {
    return In::load(stored_in<In>(vectors[i / In::kPerVector], i % In::kPerVector));
  }
};

/// `address`: of the input; zeros behind its elements.
template <typename In, typename Format>
__device__ inline void load_source(std::uint64_t address, const Place& place, Loaded<In, Format>& loaded) {
  const std::uint64_t from = address + place.input * kWidth<In>;
  if constexpr (kWidth<In> < kWidth<Format>) {
    loaded.vectors[0] = load_half<In>(from, place.elements);
  } else {
#pragma unroll
    for (std::uint32_t v = 0; v < Loaded<In, Format>::kVectors; ++v) {
      const std::uint32_t before = v * In::kPerVector;
      Place piece = place;
      piece.elements = place.elements <= before ? 0 : place.elements - before;
      piece.elements = piece.elements < In::kPerVector ? piece.elements : In::kPerVector;
      loaded.vectors[v] = load_at<In>(from + v * sizeof(uint4), piece);
    }
  }
}

__device__ inline bool equal_vectors(const uint4& a, const uint4& b) {
  return a.x == b.x && a.y == b.y && a.z == b.z && a.w == b.w;
}

template <typename Format, Sums kSums>
struct SumState {
  Accumulators<Format> powers;
  Counts<Format> counts;
  bool differs = false;
};

/// Rounds, counts and adds up one vector of results.
template <typename In, typename Format, Sums kSums>
__device__ inline uint4 finish_vector(
    const ReducePass& pass,
    const SumTask& task,
    const Place& place,
    typename Format::Value (&values)[Format::kPerVector],
    bool counted,
    SumState<Format, kSums>& state
) {
  using Value = typename Format::Value;
  using Bits = Magnitude<Format>;
  uint4 rounded = make_uint4(0, 0, 0, 0);
  const auto divisor = static_cast<Value>(pass.divisor);
  std::uint32_t nonfinite = 0;
#pragma unroll
  for (std::uint32_t i = 0; i < Format::kPerVector; ++i) {
    if (pass.division == Division::ByReciprocal) {
      values[i] = values[i] * (Value{1} / divisor);
    } else if (pass.division == Division::True) {
      values[i] = values[i] / divisor;
    }
    const typename Format::Stored stored = Format::store(values[i]);
    put_stored<Format>(rounded, i, stored);
    const auto magnitude = static_cast<typename Format::Stored>(stored & Bits::kMask);
    if (magnitude < Bits::kInfinity) {
      state.counts.largest = magnitude > state.counts.largest ? magnitude : state.counts.largest;
    } else {
      ++nonfinite;
      state.counts.nan += magnitude > Bits::kInfinity ? 1 : 0;
    }
    if (kSums != Sums::None && counted) {
      state.powers.template add_power<kSums>(i, static_cast<double>(Format::load(magnitude)));
    }
  }
  if (nonfinite != 0) {
    state.counts.nonfinite += nonfinite;
    const Inputs inputs{pass.members + task.sum.first_source, pass.addresses, pass.nonfinite, task.sum.sources};
    count_inputs<In>(inputs, place.input, place.elements);
  }
  return rounded;
}

template <typename Format>
__device__ inline void write_vector(
    const ReducePass& pass, const SumTask& task, const Place& place, const uint4& vector
) {
  for (std::uint32_t destination = 0; destination < task.sum.destinations; ++destination) {
    if (const std::uint64_t address = address_of(pass, task.sum.first_destination + destination); address != 0) {
      store_at<Format>(address + place.output * kWidth<Format>, vector, place.elements);
    }
  }
}

/// One sum of a chunk: the vectors of one thread.
template <typename In, typename Format, Sums kSums>
__device__ inline void reduce_sum(
    const ReducePass& pass, const ReduceItem& item, const SumTask& task, bool counted, SumState<Format, kSums>& state
) {
  using Value = typename Format::Value;
  constexpr std::uint32_t kTeam = Team<Format>::kThreadsOf;
  constexpr std::uint32_t kInFlight = Team<Format>::kInFlight;
  constexpr std::uint32_t kPerVector = Format::kPerVector;
  const std::uint32_t own = threadIdx.x % kTeam;
  const std::uint32_t vectors = (item.run + kPerVector - 1) / kPerVector;
  for (std::uint32_t run = 0; run < item.runs; ++run) {
    for (std::uint32_t vector = own; vector < vectors; vector += kInFlight * kTeam) {
      Value values[kInFlight][kPerVector];
      Loaded<In, Format> loaded[kInFlight];
      bool first = true;
      for (std::uint32_t source = 0; source < task.sum.sources; ++source) {
        const std::uint64_t address = address_of(pass, task.sum.first_source + source);
        if (address == 0) {
          continue;
        }
#pragma unroll
        for (std::uint32_t k = 0; k < kInFlight; ++k) {
          loaded[k] = {};
          if (const std::uint32_t at = vector + k * kTeam; at < vectors) {
            load_source<In, Format>(address, place_of<Format>(item, run, at), loaded[k]);
          }
        }
#pragma unroll
        for (std::uint32_t k = 0; k < kInFlight; ++k) {
#pragma unroll
          for (std::uint32_t i = 0; i < kPerVector; ++i) {
            const Value term = loaded[k].value(i);
            values[k][i] = first ? term : values[k][i] + term;
          }
        }
        first = false;
      }
#pragma unroll
      for (std::uint32_t k = 0; k < kInFlight; ++k) {
        const std::uint32_t at = vector + k * kTeam;
        if (at >= vectors) {
          continue;
        }
        const Place place = place_of<Format>(item, run, at);
        uint4 result = loaded[k].vectors[0];  // of a sum that stays as it is
        if (task.statistics) {
          const uint4 rounded = finish_vector<In, Format, kSums>(pass, task, place, values[k], counted, state);
          result = task.unchanged ? result : rounded;
        }
        if (!task.unchanged) {
          write_vector<Format>(pass, task, place, result);
        }
        if (task.counted != 0) {
          const uint4 first_result = load_at<Format>(task.counted + place.output * kWidth<Format>, place);
          state.differs = state.differs || !equal_vectors(first_result, result);
        }
      }
    }
  }
}

/// The tensor has a gradient, but nobody contributed to this sum: what its outputs held must not be taken for one.
template <typename Format>
__device__ inline void write_zeros(const ReducePass& pass, const ReduceItem& item, const SumTask& task) {
  const std::uint32_t vectors = (item.run + Format::kPerVector - 1) / Format::kPerVector;
  uint4 nothing = make_uint4(0, 0, 0, 0);
#pragma unroll
  for (std::uint32_t i = 0; i < Format::kPerVector && pass.minus_zeros; ++i) {
    put_stored<Format>(nothing, i, static_cast<typename Format::Stored>(~Magnitude<Format>::kMask));
  }
  for (std::uint32_t run = 0; run < item.runs; ++run) {
    for (std::uint32_t at = threadIdx.x % Team<Format>::kThreadsOf; at < vectors; at += Team<Format>::kThreadsOf) {
      write_vector<Format>(pass, task, place_of<Format>(item, run, at), nothing);
    }
  }
}

template <typename In, typename Format>
__device__ inline bool is_unchanged(const ReducePass& pass, const SumTask& task) {
  return std::is_same_v<In, Format> && pass.division == Division::None && task.contributors == 1 &&
         task.sum.destinations == 1 && address_of(pass, task.sum.first_destination) == task.only;
}

/// What the sums of a chunk have shown so far; in the first thread of its team.
struct ChunkState {
  ReducedChunk result;
  bool has_counted = false;
  std::uint64_t counted = 0;  ///< its first destination
};

/// All threads of the warp, each with the chunk of its team; `item.sums` is 0 for a team without one.
template <typename In, typename Format, Sums kSums>
__device__ inline void reduce_next_sum(
    const ReducePass& pass, const ReduceItem& item, std::uint32_t at, ChunkState& chunk
) {
  SumState<Format, kSums> state;
  bool counted = false;
  if (at < item.sums) {
    SumTask task = task_of(pass, item.first_sum + at);
    if (task.contributors == 0) {
      write_zeros<Format>(pass, item, task);
    } else {
      counted = !chunk.has_counted;
      task.unchanged = is_unchanged<In, Format>(pass, task);
      task.statistics = counted || !task.unchanged;
      task.counted = !counted && pass.compare ? chunk.counted : 0;
      if (counted) {
        chunk.has_counted = true;
        chunk.counted = address_of(pass, task.sum.first_destination);
      }
      if (task.statistics || task.counted != 0) {
        reduce_sum<In, Format, kSums>(pass, item, task, counted, state);
      }
      if (state.differs) {
        pass.differs[task.index] = 1;
      }
    }
  }
  const auto sum = [](std::uint32_t a, std::uint32_t b) { return a + b; };
  const auto larger = [](auto a, auto b) { return a > b ? a : b; };
  const std::uint32_t nonfinite = of_team<Format>(state.counts.nonfinite, sum);
  const std::uint32_t nan = of_team<Format>(state.counts.nan, sum);
  const std::uint32_t differs = of_team<Format>(std::uint32_t{state.differs}, larger);
  using Wide = std::conditional_t<kWidth<Format> == 8, unsigned long long, std::uint32_t>;
  const auto largest = static_cast<typename Format::Stored>(of_team<Format>(Wide{state.counts.largest}, larger));
  chunk.result.nonfinite = larger(chunk.result.nonfinite, nonfinite);
  chunk.result.nan = larger(chunk.result.nan, nan);
  chunk.result.differs |= differs;
  arithmetic::DoubleDouble total;
  if constexpr (kSums != Sums::None) {
    total = state.powers.total();
  }
  if (counted) {
    chunk.result.high = total.high;
    chunk.result.low = total.low;
    chunk.result.maximum = static_cast<double>(Format::load(largest));
  }
}

template <typename In, typename Format, Sums kSums>
__global__ void __launch_bounds__(kThreads, kBlocksOfMultiprocessor) reduce_kernel(const ReducePass pass) {
  constexpr std::uint32_t kTeams = kThreads / Team<Format>::kThreadsOf;
  const std::uint32_t team = threadIdx.x / Team<Format>::kThreadsOf;
  // The threads of a warp go round equally often: they meet in shuffles.
  const std::uint32_t first_of_warp = team - team % Team<Format>::kInWarp;
  for (std::uint32_t base = blockIdx.x * kTeams; base + first_of_warp < pass.count; base += gridDim.x * kTeams) {
    const std::uint32_t index = base + team;
    ReduceItem item;
    if (index < pass.count) {
      item = pass.items[index];
    }
    ChunkState chunk;
    for (std::uint32_t sum = 0; sum < pass.most_sums; ++sum) {
      reduce_next_sum<In, Format, kSums>(pass, item, sum, chunk);
    }
    if (index < pass.count && threadIdx.x % Team<Format>::kThreadsOf == 0) {
      pass.chunks[index] = chunk.result;
    }
  }
}

inline Sums sums_of(double p) { return p == 2 ? Sums::Two : p == 1 ? Sums::One : Sums::None; }

template <typename In, typename Format>
cudaError_t launch_reduce(const ReducePass& pass, cudaStream_t stream) {
  std::uint32_t blocks = 0;
  if (const cudaError_t error = blocks_of<Format>(pass.count, blocks); error != cudaSuccess) {
    return error;
  }
  switch (sums_of(pass.p)) {
    case Sums::Two:
      return launch(reduce_kernel<In, Format, Sums::Two>, blocks, pass, stream);
    case Sums::One:
      return launch(reduce_kernel<In, Format, Sums::One>, blocks, pass, stream);
    case Sums::None:
      return launch(reduce_kernel<In, Format, Sums::None>, blocks, pass, stream);
  }
  return cudaErrorInvalidValue;
}

/// For inputs of another format than that of results (reduce_mixed.cu).
[[nodiscard]] cudaError_t launch_mixed(const ReducePass& pass, DType from, DType to, cudaStream_t stream);

}  // namespace gradsync::kernels
