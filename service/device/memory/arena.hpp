#pragma once
// Creation of arena memory: a memfd sealed against resizing and further seals before anybody else sees it, so that
// neither side can make the other's mapping fault. Nothing is named in the file system.

#include "base/error.hpp"
#include "base/unique_fd.hpp"

#include <cstdint>
#include <utility>

namespace gradsync::device {

/// An empty memfd that takes seals and, where the kernel knows that, is never executed. Invalid: see errno.
[[nodiscard]] UniqueFd open_memfd(const char* name);

/// A zeroed memfd of `size_bytes` (> 0), seals SHRINK, GROW, SEAL. No page is populated. Fast enough for the io thread.
/// Whether there is room for it is not looked at here. Errors: InsufficientMemory, LimitExceeded.
[[nodiscard]] Result<UniqueFd> create_arena(std::uint64_t size_bytes);

/// Whether `fd` is an arena as `create_arena` makes them: a memfd of `size_bytes`, with these seals and none against
/// writing, owned by this daemon's uid. Errors: InvalidParams that says what it is instead.
[[nodiscard]] Result<void> check_arena(int fd, std::uint64_t size_bytes);

/// Device and inode: equal where two descriptors are of one memory.
[[nodiscard]] std::pair<std::uint64_t, std::uint64_t> memory_of(int fd);

/// Bytes of an arena that have pages, whoever's access made them.
[[nodiscard]] std::uint64_t populated_bytes(int fd);

/// All arenas of this daemon. It maps them whole, and a client can punch pages out at any time: then the daemon's next
/// access makes new ones, which its own cgroup is charged with. So all bytes are promised, but for those of pages that
/// the cgroup has been charged with already.
struct ArenaBytes {
  std::uint64_t mapped = 0;
  std::uint64_t populated = 0;  ///< those of them that have pages; not more than the cgroup's shared memory are counted
};

/// Memory that can still be given: the smaller of MemAvailable and the cgroup's limit minus usage.
struct MemoryHeadroom {
  std::uint64_t free_bytes = 0;   ///< what is promised to the arenas is taken off
  std::uint64_t short_bytes = 0;  ///< what the arenas may take beyond what is free
  std::uint64_t limit_bytes = 0;  ///< the limit of the tightest cgroup, or MemTotal
};

[[nodiscard]] MemoryHeadroom memory_headroom(const ArenaBytes& arenas = {});

/// Whether one arena more, which is counted in `arenas`, fits. Errors: InsufficientMemory, with need, free and limit;
/// InvalidParams for a size that no file has.
[[nodiscard]] Result<void> check_headroom(std::uint64_t size_bytes, const MemoryHeadroom& with_it);

/// Frees every page of a memfd, also while other descriptors and mappings of it live on.
void punch_out(int fd, std::uint64_t size_bytes);

}  // namespace gradsync::device
