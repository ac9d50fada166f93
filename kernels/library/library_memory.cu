// The C interface of a worker: memory of the device and of other processes, and copies.

#include "kernels/library/device_memory.cuh"
#include "kernels/library/gpu_calls.cuh"
#include "kernels/library/gradsync_gpu.h"

#include <cstring>
#include <cuda_runtime.h>
#include <stdexcept>

using gradsync::kernels::download;
using gradsync::kernels::give_back;
using gradsync::kernels::guarded;
using gradsync::kernels::must;
using gradsync::kernels::release_kept;
using gradsync::kernels::upload;
using gradsync::kernels::wait;

inline namespace of_library_memory {

/// How much is mapped from this address on. The runtime has no such call, and finds that of the driver.
std::size_t mapped_bytes(void* base) {
  using AddressRange = int (*)(unsigned long long* base, std::size_t* bytes, unsigned long long address);
  constexpr unsigned kSinceVersion = 3020;
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  must(
      cudaGetDriverEntryPointByVersion("cuMemGetAddressRange", &function, kSinceVersion, cudaEnableDefault, &found),
      "finding cuMemGetAddressRange"
  );
  if (found != cudaDriverEntryPointSuccess) {
    throw std::runtime_error("the driver has no cuMemGetAddressRange");
  }
  unsigned long long begin = 0;
  std::size_t bytes = 0;
  const auto address = reinterpret_cast<unsigned long long>(base);
  const int error = reinterpret_cast<AddressRange>(function)(&begin, &bytes, address);
  must(static_cast<cudaError_t>(error), "asking for the size of a mapping");
  return static_cast<std::size_t>(begin + bytes - address);
}

}  // namespace of_library_memory

GRADSYNC_EXPORT int gradsync_gpu_allocate(size_t bytes, void** address) {
  return guarded([&] {
    (void)release_kept();
    must(cudaMalloc(address, bytes), "allocating device memory");
  });
}

GRADSYNC_EXPORT int gradsync_gpu_free(void* address) {
  return guarded([&] { must(give_back(address, cudaFree), "freeing device memory"); });
}

GRADSYNC_EXPORT int gradsync_gpu_map_host(void* memory, size_t bytes, void** address) {
  return guarded([&] {
    must(cudaHostRegister(memory, bytes, cudaHostRegisterMapped), "registering host memory");
    if (const cudaError_t error = cudaHostGetDevicePointer(address, memory, 0); error != cudaSuccess) {
      (void)cudaHostUnregister(memory);
      must(error, "finding host memory on the device");
    }
  });
}

GRADSYNC_EXPORT int gradsync_gpu_unmap_host(void* memory) {
  return guarded([&] { must(cudaHostUnregister(memory), "unregistering host memory"); });
}

GRADSYNC_EXPORT int gradsync_gpu_export(void* address, void* handle) {
  return guarded([&] {
    cudaIpcMemHandle_t given{};
    must(cudaIpcGetMemHandle(&given, address), "exporting memory");
    std::memcpy(handle, &given, sizeof(given));
  });
}

GRADSYNC_EXPORT int gradsync_gpu_import(const void* handle, void** base, size_t* bytes) {
  return guarded([&] {
    cudaIpcMemHandle_t given{};
    std::memcpy(&given, handle, sizeof(given));
    (void)release_kept();
    must(cudaIpcOpenMemHandle(base, given, cudaIpcMemLazyEnablePeerAccess), "opening a memory handle");
    try {
      *bytes = mapped_bytes(*base);
    } catch (...) {
      (void)give_back(*base, cudaIpcCloseMemHandle);
      throw;
    }
  });
}

GRADSYNC_EXPORT int gradsync_gpu_close_imported(void* base) {
  return guarded([&] { must(give_back(base, cudaIpcCloseMemHandle), "closing a memory handle"); });
}

GRADSYNC_EXPORT int gradsync_gpu_wait(void) {
  return guarded([] { wait("waiting for the device"); });
}

GRADSYNC_EXPORT int gradsync_gpu_zero(void* address, size_t bytes) {
  return guarded([&] {
    must(cudaMemsetAsync(address, 0, bytes, nullptr), "writing zeros");
    wait("writing zeros");
  });
}

GRADSYNC_EXPORT int gradsync_gpu_read(void* host, const void* address, size_t bytes) {
  return guarded([&] {
    download(host, address, bytes, "reading device memory");
    wait("reading device memory");
  });
}

GRADSYNC_EXPORT int gradsync_gpu_write(void* address, const void* host, size_t bytes) {
  return guarded([&] {
    upload(address, host, bytes, "writing device memory");
    wait("writing device memory");
  });
}

GRADSYNC_EXPORT int gradsync_gpu_send(void* address, const void* host, size_t bytes) {
  return guarded([&] { upload(address, host, bytes, "writing device memory"); });
}
