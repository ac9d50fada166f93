#pragma once
// The kernels that experiments launch. Defined in probe_kernels.cu for a GPU and in emulation/fake_cuda.cpp on the
// host.

#include <cstddef>
#include <cstdint>
#include <cuda.h>
#include <cuda_runtime_api.h>

namespace gradsync::experiments {

/// words[i] = value.
cudaError_t fill_words(CUdeviceptr words, std::size_t count, std::uint32_t value, cudaStream_t stream);
/// *different += how many of the words are not value. `different` is a 64-bit word.
cudaError_t count_different_words(
    CUdeviceptr words, std::size_t count, std::uint32_t value, CUdeviceptr different, cudaStream_t stream
);
/// floats[i] = base + slope * (i % 251): exact in fp32 for small numbers, and so is their sum over ranks.
cudaError_t fill_ramp(CUdeviceptr floats, std::size_t count, float base, float slope, cudaStream_t stream);
cudaError_t count_different_ramp(
    CUdeviceptr floats, std::size_t count, float base, float slope, CUdeviceptr different, cudaStream_t stream
);
/// Occupies one thread for that long.
cudaError_t spin(std::uint64_t nanoseconds, cudaStream_t stream);
/// *at = the device's own clock in nanoseconds, one for all processes.
cudaError_t stamp(CUdeviceptr at, cudaStream_t stream);
/// An ordinary store of 64 bits by a kernel.
cudaError_t store(CUdeviceptr at, std::uint64_t value, cudaStream_t stream);
/// to[i] = 2 * from[i] over `count` floats, a multiple of 4: bound by memory, on every multiprocessor.
cudaError_t double_floats(CUdeviceptr from, CUdeviceptr to, std::size_t count, cudaStream_t stream);
/// c = a * b, n × n bfloat16 on tensor cores, n a multiple of 128: a plain one, for where cuBLAS is not.
cudaError_t multiply_bfloat16(CUdeviceptr a, CUdeviceptr b, CUdeviceptr c, int n, cudaStream_t stream);
/// Every kernel above once, so that none is loaded while a stream waits; `scratch` has 512 KiB.
cudaError_t warm_up_kernels(CUdeviceptr scratch, cudaStream_t stream);

}  // namespace gradsync::experiments
