#pragma once
// Owners of what the library of kernels makes, and addresses as its passes take them.

#include "device/gpu/kernel_library.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>

namespace gradsync::device {

/// Gives things back to the library that made them.
struct ReleaseOnGpu {
  const KernelLibrary* library = nullptr;

  void operator()(gradsync_reduction* reduction) const { library->destroy_reduction(reduction); }

  void operator()(gradsync_table* table) const { library->destroy_table(table); }

  void operator()(gradsync_stream* stream) const { library->destroy_stream(stream); }

  void operator()(std::byte* memory) const { library->free(memory); }
};

inline std::uint64_t gpu_address(const std::byte* memory) { return reinterpret_cast<std::uint64_t>(memory); }

/// Throws DeviceError, which says for what there is no memory.
[[nodiscard]] inline std::unique_ptr<std::byte, ReleaseOnGpu> allocated_on_gpu(
    const KernelLibrary& library, std::size_t bytes, const char* what
) {
  void* memory = nullptr;
  library.must(library.allocate(bytes, &memory), what);
  return {static_cast<std::byte*>(memory), ReleaseOnGpu{&library}};
}

}  // namespace gradsync::device
