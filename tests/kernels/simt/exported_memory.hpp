#pragma once
// Device memory that processes share, emulated: a memfd of its owner, which another process opens by the owner's pid
// and descriptor. The handle of CUDA's IPC carries both. As with CUDA it is the handle of a whole allocation, the same
// process cannot open it, and memory that is mapped elsewhere outlives its owner.

#include <cstddef>
#include <cstdint>

namespace simt {

/// What is in the 64 bytes.
struct MemoryHandle {
  char magic[8];
  std::int64_t pid;
  std::int64_t descriptor;
  std::int64_t refused;  ///< a CUDA error that opening it gives, for tests; 0: none
  std::uint64_t device;  ///< a number made of the value of CUDA_VISIBLE_DEVICES
  char unused[24];
};

static_assert(sizeof(MemoryHandle) == 64);

inline constexpr const char* kMemoryName = "emulated-gpu-memory";  ///< of the memfd, which /proc/PID/maps shows

/// The handle of a memfd of this process. Opening it gives the error that $GRADSYNC_SIMT_REFUSES says.
MemoryHandle handle_of(int descriptor);

/// Memory that can be exported, at a multiple of the page size; null: there is no more.
void* allocate_shared(std::size_t bytes);
/// False: it is not of `allocate_shared`.
bool free_shared(void* address);
/// Its memfd; −1: it is not of `allocate_shared`.
int descriptor_of(void* address);

/// Maps it: 0, or a CUDA error. Where $GRADSYNC_SIMT_NO_PEER is set, memory of another device cannot be mapped.
int open_memory(const MemoryHandle& handle, void** base);
int close_memory(void* base);

/// How many bytes are mapped at an address that `open_memory` gave; 0: none.
std::size_t mapped_bytes(unsigned long long base);

}  // namespace simt
