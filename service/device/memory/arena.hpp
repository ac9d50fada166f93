#pragma once
// Creation of arena memory: a memfd sealed against resizing and further seals before anybody else sees it, so that
// neither side can make the other's mapping fault. Nothing is named in the file system.

#include "base/error.hpp"
#include "base/unique_fd.hpp"

#include <cstdint>

namespace gradsync::device {

/// An empty memfd that takes seals and, where the kernel knows that, is never executed. Invalid: see errno.
[[nodiscard]] UniqueFd open_memfd(const char* name);

/// A zeroed memfd of `size_bytes` (> 0), seals SHRINK, GROW, SEAL. No page is populated. Fast enough for the io thread.
/// `promised_bytes` are those of other arenas that have no pages yet: they count as taken.
/// Errors: InsufficientMemory (with need, free and limit in the message) when the size exceeds what `headroom` leaves.
[[nodiscard]] Result<UniqueFd> create_arena(std::uint64_t size_bytes, std::uint64_t promised_bytes = 0);

/// Whether `fd` is an arena as `create_arena` makes them: a memfd of `size_bytes`, with these seals and none against
/// writing, owned by this daemon's uid. Errors: InvalidParams that says what it is instead.
[[nodiscard]] Result<void> check_arena(int fd, std::uint64_t size_bytes);

/// Whether two descriptors are of one memory.
[[nodiscard]] bool same_memory(int a, int b);

/// Bytes of an arena that have no pages yet.
[[nodiscard]] std::uint64_t unpopulated_bytes(int fd);

/// Memory that can still be given: the smaller of MemAvailable and the cgroup's limit minus usage.
struct MemoryHeadroom {
  std::uint64_t free_bytes = 0;
  std::uint64_t limit_bytes = 0;  ///< the limit of the tightest cgroup, or MemTotal
};

[[nodiscard]] MemoryHeadroom memory_headroom();

/// Frees every page of a memfd, also while other descriptors and mappings of it live on.
void punch_out(int fd, std::uint64_t size_bytes);

}  // namespace gradsync::device
