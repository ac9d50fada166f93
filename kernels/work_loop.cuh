#pragma once
// The loop of every block: claim an item, work on it, claim the next. Which block gets an item has no influence on
// bits.

#include "kernels/tables/chunk_table.hpp"
#include "kernels/tables/scratch.hpp"

#include <cuda_runtime.h>

// The emulation of the tests gives each of its blocks its own.
#ifndef GRADSYNC_SHARED
#define GRADSYNC_SHARED(type, name) __shared__ type name
#endif

namespace gradsync::kernels {

inline constexpr std::uint32_t kWarp = 32;
inline constexpr std::uint32_t kThreads = 256;
inline constexpr std::uint32_t kWarps = kThreads / kWarp;
enum class Order : std::uint8_t { Forwards, Backwards };

struct Claims {
  std::uint32_t of[2];
};

/// Items [begin, end) of a table, for one launch.
struct Items {
  const Piece* items;
  const std::uint64_t* addresses;  ///< of the tensors
  std::uint32_t begin;
  std::uint32_t end;
  std::uint32_t* next;          ///< claimed so far, beside the two that each block starts with
  std::uint32_t element_bytes;  ///< of the launch's dtype
};

inline Items items_of(const DeviceTable& table, std::size_t dtype, PassCounters* counters) {
  const ItemRange range = table.of_dtype[dtype];
  const auto width = static_cast<std::uint32_t>(size_of(static_cast<DType>(dtype)));
  return {table.items, table.addresses, range.begin, range.end, counters->next + dtype, width};
}

/// Where a piece lies in this pass; 0: its tensor is absent. It is not a run.
__device__ inline std::uint64_t address_of(const Items& work, const Piece& piece) {
  const std::uint64_t tensor = __ldg(work.addresses + piece.tensor);
  return tensor == 0 ? 0 : tensor + piece.first * work.element_bytes;
}

__device__ inline Piece load_piece(const Piece* piece) {
  static_assert(sizeof(Piece) == 3 * sizeof(uint2));
  const uint2* words = reinterpret_cast<const uint2*>(piece);
  const uint2 a = __ldg(words);
  const uint2 b = __ldg(words + 1);
  const uint2 c = __ldg(words + 2);
  Piece loaded;
  loaded.first = a.x | (static_cast<std::uint64_t>(a.y) << 32);
  loaded.count = b.x;
  loaded.tensor = b.y;
  loaded.record = c.x;
  loaded.pieces = c.y;
  return loaded;
}

/// Claims items and works on them, each in two parts with one barrier between: `gather(piece, parity)` by all threads,
/// and `finish(piece, parity)`, during which threads with nothing to finish go on to the next item. What gather leaves
/// in shared memory for finish alternates between two places, by parity. The next piece is loaded, and the one after it
/// claimed, while the current one is worked on.
template <Order kOrder, typename Gather, typename Finish>
__device__ inline void for_each_item(const Items& work, const Gather& gather, const Finish& finish) {
  GRADSYNC_SHARED(Claims, claims);
  const std::uint32_t count = work.end - work.begin;
  const auto load = [&](std::uint32_t index) {
    const std::uint32_t place = index < count ? index : count - 1;
    return load_piece(work.items + (kOrder == Order::Forwards ? work.begin + place : work.end - 1 - place));
  };
  std::uint32_t index = blockIdx.x;
  std::uint32_t following = gridDim.x + blockIdx.x;
  if (index >= count) {
    return;
  }
  Piece piece = load(index);
  for (std::uint32_t parity = 0; index < count; parity ^= 1) {
    const Piece ahead = load(following);
    std::uint32_t claimed = 0;
    if (threadIdx.x == 0) {
      claimed = 2 * gridDim.x + atomicAdd(work.next, 1U);
    }
    gather(piece, parity);
    if (threadIdx.x == 0) {
      claims.of[parity] = claimed;
    }
    __syncthreads();
    finish(piece, parity);
    index = following;
    following = claims.of[parity];
    piece = ahead;
  }
}

/// True in all threads of the one block that comes last of `blocks`, after what the others wrote is visible to it.
__device__ inline bool arrive_last(std::uint32_t* arrived, std::uint32_t blocks) {
  GRADSYNC_SHARED(std::uint32_t, last);
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(arrived, 1U) == blocks - 1 ? 1 : 0;
    __threadfence();
  }
  __syncthreads();
  return last != 0;
}

/// By the last block of a pass: the counters are zero for the next one.
__device__ inline void reset(PassCounters* counters) {
  if (threadIdx.x < kDTypes) {
    counters->next[threadIdx.x] = 0;
  } else if (threadIdx.x == kDTypes) {
    counters->arrived = 0;
  }
}

/// Blocks of a launch over `items` on the current device: no more than it holds at a time, because each block starts
/// with items of its own.
inline cudaError_t blocks_for(std::uint32_t items, std::uint32_t per_multiprocessor, std::uint32_t& blocks) {
  int device = 0;
  int multiprocessors = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  }
  const std::uint32_t resident = static_cast<std::uint32_t>(multiprocessors) * per_multiprocessor;
  blocks = items < resident ? items : resident;
  return error;
}

/// A kernel with one parameter, on kThreads threads a block.
template <typename Parameter>
cudaError_t launch(void (*kernel)(Parameter), std::uint32_t blocks, Parameter parameter, cudaStream_t stream) {
  void* arguments[] = {&parameter};
  return cudaLaunchKernel(kernel, dim3(blocks), dim3(kThreads), arguments, 0, stream);
}

}  // namespace gradsync::kernels
