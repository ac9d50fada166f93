#include "device/memory/memory_headroom.hpp"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <sstream>
#include <vector>

namespace gradsync::device {

namespace {

namespace fs = std::filesystem;

std::string_view trim(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\n");
  if (first == std::string_view::npos) {
    return {};
  }
  return text.substr(first, text.find_last_not_of(" \t\n") - first + 1);
}

std::optional<std::uint64_t> number(std::string_view text) {
  text = trim(text);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size() && !text.empty() ? std::optional(value)
                                                                                   : std::nullopt;
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const auto end = text.find('\n');
    lines.push_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return lines;
}

struct CgroupFiles {
  fs::path mount;
  const char* limit;
  const char* usage;
  const char* reclaimable;  ///< key in memory.stat
  const char* shared;       ///< likewise: the memory of memfds is among it
};

/// What is promised to the arenas counts as taken, but for the pages that are in what is used already.
void tighten(MemoryHeadroom& headroom, std::uint64_t free, std::uint64_t shared, const ArenaBytes& arenas) {
  const std::uint64_t charged = std::min({arenas.mapped, arenas.populated, shared});
  const std::uint64_t promised = arenas.mapped - charged;
  headroom.free_bytes = std::min(headroom.free_bytes, free - std::min(free, promised));
  headroom.short_bytes = std::max(headroom.short_bytes, promised - std::min(free, promised));
}

void tighten(MemoryHeadroom& headroom, const fs::path& folder, const CgroupFiles& files, const ArenaBytes& arenas) {
  const auto limit_text = read_text(folder / files.limit);
  const auto usage_text = read_text(folder / files.usage);
  const auto limit = limit_text ? cgroup_limit(*limit_text) : std::nullopt;
  const auto usage = usage_text ? number(*usage_text) : std::nullopt;
  if (!limit || !usage) {
    return;
  }
  const auto stat = read_text(folder / "memory.stat");
  const std::uint64_t cache = stat ? keyed_number(*stat, files.reclaimable).value_or(0) : 0;
  const std::uint64_t used = *usage - std::min(*usage, cache);
  const auto shared = stat ? keyed_number(*stat, files.shared) : std::nullopt;
  tighten(headroom, *limit - std::min(*limit, used), shared.value_or(arenas.populated), arenas);
  headroom.limit_bytes = std::min(headroom.limit_bytes, *limit);
}

/// The process' own cgroup and all above it. Inside a container the path may name a folder that only the host sees:
/// then only the mount's root is there to be read.
void tighten_upwards(
    MemoryHeadroom& headroom, const std::string& path, const CgroupFiles& files, const ArenaBytes& arenas
) {
  fs::path below = fs::path(path).relative_path().lexically_normal();
  while (!below.empty() && below != ".") {
    tighten(headroom, files.mount / below, files, arenas);
    below = below.parent_path();
  }
  tighten(headroom, files.mount, files, arenas);
}

}  // namespace

std::optional<std::string> read_text(const fs::path& path) {
  const std::ifstream file(path);
  if (!file) {
    return std::nullopt;
  }
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::optional<std::uint64_t> meminfo_bytes(std::string_view text, std::string_view key) {
  for (std::string_view line : lines_of(text)) {
    if (line.starts_with(key) && line.substr(key.size()).starts_with(":")) {
      line.remove_prefix(key.size() + 1);
      line = trim(line);
      if (line.ends_with("kB")) {
        line.remove_suffix(2);
      }
      const auto kilobytes = number(line);
      return kilobytes ? std::optional(*kilobytes * 1024) : std::nullopt;
    }
  }
  return std::nullopt;
}

std::optional<std::uint64_t> cgroup_limit(std::string_view text) {
  const auto value = number(text);
  // v1 writes the largest page-aligned int64 when there is no limit.
  constexpr std::uint64_t kNone = std::uint64_t{1} << 62;
  return value && *value < kNone ? value : std::nullopt;
}

std::optional<std::uint64_t> keyed_number(std::string_view text, std::string_view key) {
  for (const std::string_view line : lines_of(text)) {
    if (line.starts_with(key) && line.substr(key.size()).starts_with(" ")) {
      return number(line.substr(key.size()));
    }
  }
  return std::nullopt;
}

std::optional<std::string> cgroup_path(std::string_view text, std::string_view controller) {
  for (const std::string_view line : lines_of(text)) {
    const auto first = line.find(':');
    const auto second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) {
      continue;
    }
    const std::string names = "," + std::string(line.substr(first + 1, second - first - 1)) + ",";
    const bool found = controller.empty() ? line.starts_with("0::")
                                          : names.find("," + std::string(controller) + ",") != std::string::npos;
    if (found) {
      return std::string(line.substr(second + 1));
    }
  }
  return std::nullopt;
}

MemoryHeadroom memory_headroom_of(const fs::path& root, const ArenaBytes& arenas) {
  const std::string meminfo = read_text(root / "proc/meminfo").value_or("");
  constexpr std::uint64_t kUnknown = std::numeric_limits<std::uint64_t>::max();
  MemoryHeadroom headroom;
  headroom.limit_bytes = meminfo_bytes(meminfo, "MemTotal").value_or(kUnknown);
  headroom.free_bytes = kUnknown;
  const std::uint64_t available = meminfo_bytes(meminfo, "MemAvailable").value_or(headroom.limit_bytes);
  tighten(headroom, available, arenas.populated, arenas);

  const std::string cgroups = read_text(root / "proc/self/cgroup").value_or("");
  if (const auto path = cgroup_path(cgroups, "")) {
    tighten_upwards(
        headroom, *path, {root / "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file", "shmem"}, arenas
    );
  }
  if (const auto path = cgroup_path(cgroups, "memory")) {
    tighten_upwards(
        headroom,
        *path,
        {root / "sys/fs/cgroup/memory",
         "memory.limit_in_bytes",
         "memory.usage_in_bytes",
         "total_inactive_file",
         "total_shmem"},
        arenas
    );
  }
  return headroom;
}

MemoryHeadroom memory_headroom(const ArenaBytes& arenas) { return memory_headroom_of("/", arenas); }

}  // namespace gradsync::device
