#include "gpu/experiments/loads/probe_kernels.hpp"

#include <cuda_bf16.h>
#include <mma.h>

namespace gradsync::experiments {
namespace {

__device__ std::uint64_t device_clock() {
  std::uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

__global__ void fill_words_kernel(std::uint32_t* words, std::size_t count, std::uint32_t value) {
  for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<std::size_t>(gridDim.x) * blockDim.x) {
    words[i] = value;
  }
}

__global__ void count_different_words_kernel(
    const std::uint32_t* words, std::size_t count, std::uint32_t value, unsigned long long* different
) {
  unsigned long long found = 0;
  for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<std::size_t>(gridDim.x) * blockDim.x) {
    found += words[i] != value;
  }
  if (found != 0) {
    atomicAdd(different, found);
  }
}

__global__ void fill_ramp_kernel(float* floats, std::size_t count, float base, float slope) {
  for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<std::size_t>(gridDim.x) * blockDim.x) {
    floats[i] = base + slope * static_cast<float>(i % 251);
  }
}

__global__ void count_different_ramp_kernel(
    const float* floats, std::size_t count, float base, float slope, unsigned long long* different
) {
  unsigned long long found = 0;
  for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<std::size_t>(gridDim.x) * blockDim.x) {
    found += floats[i] != base + slope * static_cast<float>(i % 251);
  }
  if (found != 0) {
    atomicAdd(different, found);
  }
}

__global__ void spin_kernel(std::uint64_t nanoseconds) {
  const std::uint64_t began = device_clock();
  while (device_clock() - began < nanoseconds) {
  }
}

__global__ void stamp_kernel(std::uint64_t* at) { *at = device_clock(); }

__global__ void store_kernel(volatile std::uint64_t* at, std::uint64_t value) {
  *at = value;
  __threadfence_system();
}

__global__ void double_floats_kernel(const float4* from, float4* to, std::size_t count) {
  for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<std::size_t>(gridDim.x) * blockDim.x) {
    const float4 value = from[i];
    to[i] = make_float4(2 * value.x, 2 * value.y, 2 * value.z, 2 * value.w);
  }
}

// 128 × 128 of c per block of 8 warps, 64 × 32 of it per warp, straight from the caches: a fraction of cuBLAS's speed,
// and tensor cores busy all the same.
__global__ void __launch_bounds__(256)
    multiply_kernel(const __nv_bfloat16* a, const __nv_bfloat16* b, __nv_bfloat16* c, int n) {
  namespace wmma = nvcuda::wmma;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int row = static_cast<int>(blockIdx.y) * 128 + (warp / 4) * 64;
  const int column = static_cast<int>(blockIdx.x) * 128 + (warp % 4) * 32;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums[4][2];
  for (auto& line : sums) {
    for (auto& sum : line) {
      wmma::fill_fragment(sum, 0.0F);
    }
  }
  for (int k = 0; k < n; k += 16) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, wmma::row_major> left[4];
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, wmma::row_major> right[2];
    for (int i = 0; i < 4; ++i) {
      wmma::load_matrix_sync(left[i], a + static_cast<std::size_t>(row + 16 * i) * n + k, n);
    }
    for (int j = 0; j < 2; ++j) {
      wmma::load_matrix_sync(right[j], b + static_cast<std::size_t>(k) * n + column + 16 * j, n);
    }
    for (int i = 0; i < 4; ++i) {
      for (int j = 0; j < 2; ++j) {
        wmma::mma_sync(sums[i][j], left[i], right[j], sums[i][j]);
      }
    }
  }
  // Stored through shared memory, because fragments of float do not store as bfloat16.
  __shared__ float tile[8][16 * 16];
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 2; ++j) {
      wmma::store_matrix_sync(tile[warp], sums[i][j], 16, wmma::mem_row_major);
      __syncwarp();
      for (int at = static_cast<int>(threadIdx.x) % 32; at < 256; at += 32) {
        c[static_cast<std::size_t>(row + 16 * i + at / 16) * n + column + 16 * j + at % 16] =
            __float2bfloat16(tile[warp][at]);
      }
      __syncwarp();
    }
  }
}

constexpr unsigned kThreads = 256;

unsigned blocks_for(std::size_t items) {
  const std::size_t blocks = (items + kThreads - 1) / kThreads;
  return static_cast<unsigned>(blocks < 2048 ? (blocks == 0 ? 1 : blocks) : 2048);
}

template <typename T>
T* pointer(CUdeviceptr address) {
  return reinterpret_cast<T*>(address);
}

}  // namespace

cudaError_t fill_words(CUdeviceptr words, std::size_t count, std::uint32_t value, cudaStream_t stream) {
  fill_words_kernel<<<blocks_for(count), kThreads, 0, stream>>>(pointer<std::uint32_t>(words), count, value);
  return cudaGetLastError();
}

cudaError_t count_different_words(
    CUdeviceptr words, std::size_t count, std::uint32_t value, CUdeviceptr different, cudaStream_t stream
) {
  count_different_words_kernel<<<blocks_for(count), kThreads, 0, stream>>>(
      pointer<const std::uint32_t>(words), count, value, pointer<unsigned long long>(different)
  );
  return cudaGetLastError();
}

cudaError_t fill_ramp(CUdeviceptr floats, std::size_t count, float base, float slope, cudaStream_t stream) {
  fill_ramp_kernel<<<blocks_for(count), kThreads, 0, stream>>>(pointer<float>(floats), count, base, slope);
  return cudaGetLastError();
}

cudaError_t count_different_ramp(
    CUdeviceptr floats, std::size_t count, float base, float slope, CUdeviceptr different, cudaStream_t stream
) {
  count_different_ramp_kernel<<<blocks_for(count), kThreads, 0, stream>>>(
      pointer<const float>(floats), count, base, slope, pointer<unsigned long long>(different)
  );
  return cudaGetLastError();
}

cudaError_t spin(std::uint64_t nanoseconds, cudaStream_t stream) {
  spin_kernel<<<1, 1, 0, stream>>>(nanoseconds);
  return cudaGetLastError();
}

cudaError_t stamp(CUdeviceptr at, cudaStream_t stream) {
  stamp_kernel<<<1, 1, 0, stream>>>(pointer<std::uint64_t>(at));
  return cudaGetLastError();
}

cudaError_t store(CUdeviceptr at, std::uint64_t value, cudaStream_t stream) {
  store_kernel<<<1, 1, 0, stream>>>(pointer<std::uint64_t>(at), value);
  return cudaGetLastError();
}

cudaError_t double_floats(CUdeviceptr from, CUdeviceptr to, std::size_t count, cudaStream_t stream) {
  double_floats_kernel<<<blocks_for(count / 4), kThreads, 0, stream>>>(
      pointer<const float4>(from), pointer<float4>(to), count / 4
  );
  return cudaGetLastError();
}

cudaError_t multiply_bfloat16(CUdeviceptr a, CUdeviceptr b, CUdeviceptr c, int n, cudaStream_t stream) {
  const dim3 blocks(static_cast<unsigned>(n) / 128, static_cast<unsigned>(n) / 128);
  multiply_kernel<<<blocks, kThreads, 0, stream>>>(
      pointer<const __nv_bfloat16>(a), pointer<const __nv_bfloat16>(b), pointer<__nv_bfloat16>(c), n
  );
  return cudaGetLastError();
}

cudaError_t warm_up_kernels(CUdeviceptr scratch, cudaStream_t stream) {
  const CUdeviceptr count = scratch + (256U << 10);
  cudaError_t first = cudaSuccess;
  for (const cudaError_t error : {
           fill_words(scratch, 1024, 0, stream),
           count_different_words(scratch, 1024, 0, count, stream),
           fill_ramp(scratch, 1024, 0, 0, stream),
           count_different_ramp(scratch, 1024, 0, 0, count, stream),
           spin(0, stream),
           stamp(scratch, stream),
           store(scratch, 0, stream),
           double_floats(scratch, scratch + 4096, 1024, stream),
           multiply_bfloat16(scratch, scratch + 65536, scratch + 131072, 128, stream),
       }) {
    first = first == cudaSuccess ? error : first;
  }
  return first;
}

}  // namespace gradsync::experiments
