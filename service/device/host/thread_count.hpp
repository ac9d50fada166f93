#pragma once
// The number of threads that this process may keep busy: its affinity mask, or less where a cgroup limits its CPU time.

#include <filesystem>
#include <optional>
#include <string_view>

namespace gradsync::device {

[[nodiscard]] int available_threads();

/// Whole CPUs of the tightest cgroup quota (at least 1) from the process' own cgroup up to the root; nothing: no quota.
/// `root` stands for `/`.
[[nodiscard]] std::optional<int> cgroup_cpus(const std::filesystem::path& root);

/// A quota of `cpu.max`: "150000 100000" → 1.5, "max 100000" → nothing.
[[nodiscard]] std::optional<double> cpu_max(std::string_view text);

}  // namespace gradsync::device
