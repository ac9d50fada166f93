#pragma once
// Reads from text files of the kernel how much memory can still be allocated. The root is a parameter so that tests can
// lay out a file tree of their own.

#include "device/memory/arena.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace gradsync::device {

/// Does what `memory_headroom()` does, with `root` for `/`. Takes the tightest limit of /proc/meminfo and every cgroup
/// (v1 and v2) from the process' own up to the root. Page cache that can be dropped (inactive_file) does not count as
/// used. A file that cannot be read does not limit.
[[nodiscard]] MemoryHeadroom memory_headroom_of(const std::filesystem::path& root, const ArenaBytes& arenas = {});

/// The value in bytes of a line `Key:   123 kB` of /proc/meminfo.
[[nodiscard]] std::optional<std::uint64_t> meminfo_bytes(std::string_view text, std::string_view key);

/// A limit file: a number, or "max" (and the huge number that v1 writes instead) for none.
[[nodiscard]] std::optional<std::uint64_t> cgroup_limit(std::string_view text);

/// The value of `key` in lines `key 123`, as in memory.stat.
[[nodiscard]] std::optional<std::uint64_t> keyed_number(std::string_view text, std::string_view key);

/// The path of this process in /proc/self/cgroup: of v2 when `controller` is empty, else of that v1 controller.
[[nodiscard]] std::optional<std::string> cgroup_path(std::string_view text, std::string_view controller);

/// The whole file, or nothing.
[[nodiscard]] std::optional<std::string> read_text(const std::filesystem::path& path);

}  // namespace gradsync::device
