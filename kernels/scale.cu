// The clipping pass: reads and writes what has to change, from the end of the table to its start, because the pieces
// that the measuring pass read last are the ones still in the L2 cache.

#include "kernels/format.cuh"
#include "kernels/kernels.hpp"
#include "kernels/work_loop.cuh"

namespace gradsync::kernels {

inline namespace of_scale {

struct ScalePass {
  Items work;
  const Piece* small;
  const TensorEntry* entries;
  const ClipOutcome* outcomes;
  PassCounters* counters;
  std::uint32_t clip_groups;
  std::uint32_t blocks;  ///< of all launches of the pass
};

constexpr std::uint32_t kInFlight = 6;
constexpr std::uint32_t kBlocks = 3;  // that a multiprocessor holds at a time

template <typename Format>
struct Multiply {
  typename Format::Value factor;

  __device__ uint4 operator()(const uint4& vector) const {
    uint4 result = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (std::uint32_t i = 0; i < Format::kPerVector; ++i) {
      put_stored<Format>(result, i, Format::store(Format::load(stored_in<Format>(vector, i)) * factor));
    }
    return result;
  }
};

/// A product of NaN with 0 is NaN.
struct WriteZeros {
  __device__ uint4 operator()(const uint4& /*vector*/) const { return make_uint4(0, 0, 0, 0); }
};

/// `address` is aligned to a vector.
template <typename Format, typename Change>
__device__ inline void change_vectors(
    std::uint64_t address, std::uint32_t count, std::uint32_t own, std::uint32_t stride, const Change& change
) {
  constexpr std::uint32_t kPerVector = Format::kPerVector;
  auto* vectors = reinterpret_cast<uint4*>(address);
  const std::uint32_t whole = count / kPerVector;
  std::uint32_t index = own;
  for (; index + (kInFlight - 1) * stride < whole; index += kInFlight * stride) {
    uint4 loaded[kInFlight];
#pragma unroll
    for (std::uint32_t i = 0; i < kInFlight; ++i) {
      loaded[i] = __ldcg(vectors + index + i * stride);
    }
#pragma unroll
    for (std::uint32_t i = 0; i < kInFlight; ++i) {
      __stcg(vectors + index + i * stride, change(loaded[i]));
    }
  }
  uint4 loaded[kInFlight];
#pragma unroll
  for (std::uint32_t i = 0; i < kInFlight; ++i) {
    if (index + i * stride < whole) {
      loaded[i] = __ldcg(vectors + index + i * stride);
    }
  }
#pragma unroll
  for (std::uint32_t i = 0; i < kInFlight; ++i) {
    if (index + i * stride < whole) {
      __stcg(vectors + index + i * stride, change(loaded[i]));
    }
  }
  if (whole % stride == own && whole * kPerVector < count) {
    auto* place = reinterpret_cast<typename Format::Stored*>(address) + whole * kPerVector;
    const std::uint32_t rest = count - whole * kPerVector;
    store_elements<Format>(place, change(load_elements<Format>(place, rest)), rest);
  }
}

template <typename Format, typename Change>
__device__ inline void change_elements(
    std::uint64_t address, std::uint32_t count, std::uint32_t own, std::uint32_t stride, const Change& change
) {
  // Up to the first aligned vector: less than one.
  constexpr std::uint32_t kWidth = sizeof(typename Format::Stored);
  const auto before = static_cast<std::uint32_t>(-address % sizeof(uint4)) / kWidth;
  const std::uint32_t head = before < count ? before : count;
  if (own == 0 && head != 0) {
    auto* place = reinterpret_cast<typename Format::Stored*>(address);
    store_elements<Format>(place, change(load_elements<Format>(place, head)), head);
  }
  change_vectors<Format>(address + head * kWidth, count - head, own, stride, change);
}

template <typename Format>
__device__ inline void scale_piece(const ScalePass& pass, const Piece& piece, std::uint32_t own, std::uint32_t stride) {
  const ClipOutcome& outcome = pass.outcomes[pass.entries[piece.tensor].clip_group];
  const std::uint64_t address = address_of(pass.work, piece);
  if (!changes(outcome) || address == 0) {
    return;
  }
  if (outcome.multiply == kWriteZeros) {
    change_elements<Format>(address, piece.count, own, stride, WriteZeros{});
  } else {
    const Multiply<Format> multiply{static_cast<typename Format::Value>(outcome.multiplier)};
    change_elements<Format>(address, piece.count, own, stride, multiply);
  }
}

template <typename Format>
__global__ void __launch_bounds__(kThreads, kBlocks) scale_kernel(const ScalePass pass) {
  int any = 0;
  for (std::uint32_t group = threadIdx.x; group < pass.clip_groups; group += kThreads) {
    any |= changes(pass.outcomes[group]) ? 1 : 0;
  }
  // Every block decides alike, so that either all of them take part in the counters or none does.
  if (__syncthreads_or(any) == 0) {
    return;
  }
  const auto scale_item = [&pass](const Piece& piece, std::uint32_t /*parity*/) {
    if (piece.pieces != 0) {
      scale_piece<Format>(pass, piece, threadIdx.x, kThreads);
      return;
    }
    for (std::uint32_t i = threadIdx.x / kWarp; i < piece.count; i += kWarps) {
      scale_piece<Format>(pass, load_piece(pass.small + piece.first + i), threadIdx.x % kWarp, kWarp);
    }
  };
  for_each_item<Order::Backwards>(pass.work, scale_item, [](const Piece& /*piece*/, std::uint32_t /*parity*/) {});
  if (arrive_last(&pass.counters->arrived, pass.blocks)) {
    reset(pass.counters);
  }
}

cudaError_t launch_dtype(DType dtype, std::uint32_t blocks, const ScalePass& pass, cudaStream_t stream) {
  switch (dtype) {
    case DType::Float32:
      return launch(scale_kernel<Float32>, blocks, pass, stream);
    case DType::BFloat16:
      return launch(scale_kernel<BFloat16>, blocks, pass, stream);
    case DType::Float16:
      return launch(scale_kernel<Float16>, blocks, pass, stream);
    case DType::Float64:
      return launch(scale_kernel<Float64>, blocks, pass, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace of_scale

cudaError_t scale(const DeviceTable& table, const ClipOutcome* outcomes, void* scratch, cudaStream_t stream) {
  std::uint32_t blocks[kDTypes] = {};
  ScalePass pass{};
  for (std::size_t dtype = 0; dtype < kDTypes; ++dtype) {
    const ItemRange range = table.of_dtype[dtype];
    if (const cudaError_t error = blocks_for(range.end - range.begin, kBlocks, blocks[dtype]); error != cudaSuccess) {
      return error;
    }
    pass.blocks += blocks[dtype];
  }
  pass.small = table.small;
  pass.entries = table.tensors;
  pass.outcomes = outcomes;
  pass.counters = scratch_at(scratch, table).counters;
  pass.clip_groups = table.clip_groups;
  // Backwards over dtypes as well.
  for (std::size_t dtype = kDTypes; dtype-- > 0;) {
    const ItemRange range = table.of_dtype[dtype];
    if (range.begin == range.end) {
      continue;
    }
    pass.work = items_of(table, dtype, pass.counters);
    if (const cudaError_t error = launch_dtype(static_cast<DType>(dtype), blocks[dtype], pass, stream);
        error != cudaSuccess) {
      return error;
    }
  }
  return cudaSuccess;
}

}  // namespace gradsync::kernels
