#pragma once
// Stands in for the CUDA header of this name, so that g++ compiles kernels/*.cu as they are and tests run them: the
// words of CUDA C++ and the functions of its runtime that kernels/ and its tests use, on top of simt.hpp.

// Standard headers use some of the words defined below; those that follow must find them included already.
#include "driver_types.h"
#include "exported_memory.hpp"
#include "simt.hpp"
#include "streams.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __noinline__
#define __launch_bounds__(...)
// One object per block and place in the source. Its content is arbitrary at first, as on a GPU.
#define GRADSYNC_SHARED(type, name) type& name = simt::shared<type>([] {})

#define threadIdx (simt::thread_index())
#define blockIdx (simt::block_index())
#define gridDim (simt::grid_size())

using simt::dim3;

struct alignas(8) uint2 {
  unsigned x, y;
};

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

template <typename T>
T __ldg(const T* from) {
  return *from;
}

template <typename T>
T __ldcg(const T* from) {
  return *from;
}

template <typename T>
void __stcg(T* to, T value) {
  *to = value;
}

inline void __threadfence() {}

template <typename T>
T atomicAdd(T* to, T value) {
  const T before = *to;
  *to += value;
  return before;
}

inline void __syncthreads() { (void)simt::block_barrier(0); }

inline int __syncthreads_or(int value) { return simt::block_barrier(value); }

template <typename T>
T __shfl_down_sync(unsigned /*mask*/, T value, unsigned delta) {
  static_assert(sizeof(T) <= 8);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  const simt::WarpValues& values = simt::warp_exchange(simt::WarpOperation::ShuffleDown, bits);
  const unsigned from = simt::lane() + delta;
  std::memcpy(&value, &values[from < values.size() ? from : simt::lane()], sizeof(T));
  return value;
}

inline unsigned __reduce_add_sync(unsigned /*mask*/, unsigned value) {
  unsigned sum = 0;
  for (const std::uint64_t other : simt::warp_exchange(simt::WarpOperation::ReduceAdd, value)) {
    sum += static_cast<unsigned>(other);
  }
  return sum;
}

/// What a call returns where the device is lost; else nothing is wrong, or the launch that a test has fail.
inline cudaError_t cudaEmulatedState(bool good = true) {
  return simt::fault() != 0 ? static_cast<cudaError_t>(simt::fault()) : good ? cudaSuccess : cudaErrorLaunchFailure;
}

template <typename Parameter>
cudaError_t cudaLaunchKernel(
    void (*kernel)(Parameter), dim3 grid, dim3 block, void** arguments, std::size_t, cudaStream_t
) {
  if (!simt::has_code()) {
    return cudaErrorNoKernelImageForDevice;
  }
  const auto parameter = *static_cast<std::remove_const_t<Parameter>*>(arguments[0]);
  const auto run = [kernel, parameter, grid, block] {
    return simt::launch(grid.x, block.x, [kernel, &parameter] { kernel(parameter); });
  };
  return cudaEmulatedState(simt::Deferred::enqueue(run));
}

struct cudaFuncAttributes {};

template <typename Function>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, Function*) {
  return simt::has_code() ? cudaSuccess : cudaErrorNoKernelImageForDevice;
}

inline cudaError_t cudaGetLastError() { return cudaSuccess; }

enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount,
  cudaDevAttrComputeCapabilityMajor,
  cudaDevAttrComputeCapabilityMinor,
  cudaDevAttrComputeMode,
};

enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };

inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

inline cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}

inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }

struct cudaUUID_t {
  char bytes[16];
};

struct cudaDeviceProp {
  cudaUUID_t uuid;
  char name[256];
  std::size_t totalGlobalMem;
};

// Its UUID is the one that CUDA_VISIBLE_DEVICES names, or all zeros; its name is that of $GRADSYNC_SIMT_NAME.
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  const char* name = std::getenv("GRADSYNC_SIMT_NAME");
  std::strncpy(properties->name, name == nullptr ? "emulated" : name, sizeof(properties->name) - 1);
  properties->totalGlobalMem = std::size_t{1} << 30;
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  std::string digits = visible != nullptr && std::strncmp(visible, "GPU-", 4) == 0 ? visible + 4 : "";
  digits = digits.substr(0, digits.find(','));
  std::erase(digits, '-');
  for (std::size_t i = 0; i < sizeof(cudaUUID_t) && digits.size() == 2 * sizeof(cudaUUID_t); ++i) {
    properties->uuid.bytes[i] = static_cast<char>(std::stoi(digits.substr(2 * i, 2), nullptr, 16));
  }
  return cudaSuccess;
}

inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = simt::kMultiprocessors;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = simt::capability() / 10;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = simt::capability() % 10;
      return cudaSuccess;
    case cudaDevAttrComputeMode: {
      const char* mode = std::getenv("GRADSYNC_SIMT_COMPUTE_MODE");
      *value = mode == nullptr ? 0 : std::atoi(mode);
      return cudaSuccess;
    }
  }
  return cudaErrorInvalidValue;
}

inline const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "error of the emulated device";
}

// From the heap, at the exact size: an access beyond the end is seen by AddressSanitizer. Pieces of 2 MiB are of memory
// that can be exported. Filled with a NaN of every type.
inline cudaError_t cudaMalloc(void** address, std::size_t bytes) {
  constexpr std::size_t kPiece = std::size_t{2} << 20;
  *address = bytes != 0 && bytes % kPiece == 0
                 ? simt::allocate_shared(bytes)
                 : ::operator new(std::max<std::size_t>(bytes, 1), std::align_val_t{256}, std::nothrow);
  if (*address == nullptr) {
    return cudaErrorMemoryAllocation;
  }
  std::memset(*address, 0xff, bytes);
  return cudaEmulatedState();
}

inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (const std::shared_ptr<simt::Stream> found = simt::Stream::find(stream)) {
    found->wait();
    return cudaEmulatedState();
  }
  return cudaEmulatedState(simt::Deferred::finish());
}

constexpr unsigned cudaStreamNonBlocking = 1;

inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = simt::Stream::create();
  return cudaEmulatedState();
}

inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  simt::Stream::destroy(stream);
  return cudaSuccess;
}

struct CUevent_st {
  std::shared_ptr<std::atomic<bool>> passed = std::make_shared<std::atomic<bool>>(true);
};

using cudaEvent_t = CUevent_st*;
constexpr unsigned cudaEventDisableTiming = 2;

inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaEmulatedState();
}

inline cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const std::shared_ptr<simt::Stream> found = simt::Stream::find(stream);
  if (found == nullptr) {
    return cudaErrorInvalidValue;  // no test marks the default stream
  }
  event->passed = std::make_shared<std::atomic<bool>>(false);
  found->enqueue([passed = event->passed] { *passed = true; });
  return cudaEmulatedState();
}

inline cudaError_t cudaEventQuery(cudaEvent_t event) {
  return *event->passed ? cudaEmulatedState() : cudaErrorNotReady;
}

inline cudaError_t cudaFree(void* address) {
  (void)simt::Deferred::finish();
  simt::Stream::wait_for_all();
  if (!simt::free_shared(address)) {
    ::operator delete(address, std::align_val_t{256});
  }
  return cudaEmulatedState();
}

// Pageable memory of the host is read before the call returns, and written after everything before it. What the device
// reaches by itself is read and written when the stream gets there.

inline cudaError_t cudaMemcpy2DAsync(
    void* to,
    std::size_t to_pitch,
    const void* from,
    std::size_t from_pitch,
    std::size_t width,
    std::size_t height,
    cudaMemcpyKind kind,
    cudaStream_t stream
) {
  const auto copy = [=](const char* source) {
    for (std::size_t row = 0; row < height; ++row) {
      std::memcpy(static_cast<char*>(to) + row * to_pitch, source + row * from_pitch, width);
    }
    return true;
  };
  const auto* source = static_cast<const char*>(from);
  if (simt::Deferred::reaches(kind == cudaMemcpyDeviceToHost ? to : from)) {
    simt::Deferred::enqueue([copy, source] { return copy(source); });
    return cudaEmulatedState();
  }
  if (kind == cudaMemcpyDeviceToHost) {
    const cudaError_t error = cudaStreamSynchronize(stream);
    (void)copy(source);
    return error;
  }
  std::vector<char> data(source, source + (height == 0 ? 0 : (height - 1) * from_pitch + width));
  simt::Deferred::enqueue([copy, data = std::move(data)] { return copy(data.data()); });
  return cudaEmulatedState();
}

inline cudaError_t cudaMemcpyAsync(
    void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream
) {
  return cudaMemcpy2DAsync(to, bytes, from, bytes, bytes, 1, kind, stream);
}

inline cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t) {
  simt::Deferred::enqueue([to, value, bytes] {
    std::memset(to, value, bytes);
    return true;
  });
  return cudaEmulatedState();
}

constexpr unsigned cudaHostRegisterMapped = 2;

inline cudaError_t cudaHostRegister(void*, std::size_t, unsigned) { return cudaSuccess; }

inline cudaError_t cudaHostUnregister(void*) { return cudaStreamSynchronize(nullptr); }

constexpr unsigned cudaHostAllocMapped = 2;

inline cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned) {
  *memory = simt::Deferred::allocate_host(bytes);
  return cudaSuccess;
}

inline cudaError_t cudaFreeHost(void* memory) {
  simt::Deferred::free_host(memory);
  return cudaSuccess;
}

inline cudaError_t cudaHostGetDevicePointer(void** address, void* memory, unsigned) {
  *address = memory;
  return cudaSuccess;
}

using cudaIpcMemHandle_t = simt::MemoryHandle;
constexpr unsigned cudaIpcMemLazyEnablePeerAccess = 1;

inline cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* address) {
  const int descriptor = simt::descriptor_of(address);
  if (descriptor < 0) {
    return cudaErrorInvalidValue;
  }
  *handle = simt::handle_of(descriptor);
  return cudaEmulatedState();
}

inline cudaError_t cudaIpcOpenMemHandle(void** base, const cudaIpcMemHandle_t& handle, unsigned) {
  return simt::fault() != 0 ? cudaEmulatedState() : static_cast<cudaError_t>(simt::open_memory(handle, base));
}

inline cudaError_t cudaIpcCloseMemHandle(void* base) {
  (void)simt::Deferred::finish();
  simt::Stream::wait_for_all();
  return simt::fault() != 0 ? cudaEmulatedState() : static_cast<cudaError_t>(simt::close_memory(base));
}

enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess, cudaDriverEntryPointSymbolNotFound };

constexpr unsigned long long cudaEnableDefault = 0;

/// The driver's functions that are called; they answer with the number of CUDA's result.
inline int cudaEmulatedRange(unsigned long long* base, std::size_t* bytes, unsigned long long address) {
  *base = address;
  *bytes = simt::mapped_bytes(address);
  return *bytes == 0 ? 1 : 0;
}

inline int cudaEmulatedWaitValue(cudaStream_t, unsigned long long word, unsigned long long value, unsigned) {
  if (std::getenv("GRADSYNC_SIMT_NO_MEMOPS") != nullptr) {
    return 801;
  }
  const std::atomic_ref<unsigned long long> there(*reinterpret_cast<unsigned long long*>(word));
  simt::Deferred::enqueue([there, value] {
    while (there.load(std::memory_order_acquire) < value) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    return true;
  });
  return 0;
}

inline int cudaEmulatedWriteValue(cudaStream_t, unsigned long long word, unsigned long long value, unsigned) {
  const std::atomic_ref<unsigned long long> there(*reinterpret_cast<unsigned long long*>(word));
  simt::Deferred::enqueue([there, value] {
    there.store(value, std::memory_order_release);
    return true;
  });
  return 0;
}

inline cudaError_t cudaGetDriverEntryPointByVersion(
    const char* name, void** function, unsigned, unsigned long long, cudaDriverEntryPointQueryResult* found
) {
  const std::string_view wanted = name;
  *found = cudaDriverEntryPointSuccess;
  if (wanted == "cuMemGetAddressRange") {
    *function = reinterpret_cast<void*>(cudaEmulatedRange);
  } else if (wanted == "cuStreamWaitValue64") {
    *function = reinterpret_cast<void*>(cudaEmulatedWaitValue);
  } else if (wanted == "cuStreamWriteValue64") {
    *function = reinterpret_cast<void*>(cudaEmulatedWriteValue);
  } else {
    *found = cudaDriverEntryPointSymbolNotFound;
  }
  return cudaSuccess;
}
