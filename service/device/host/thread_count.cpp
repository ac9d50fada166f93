#include "device/host/thread_count.hpp"

#include "device/memory/memory_headroom.hpp"

#include <algorithm>
#include <cmath>
#include <sched.h>
#include <sstream>
#include <string>

namespace gradsync::device {

namespace {

namespace fs = std::filesystem;

std::optional<double> quota_v1(const fs::path& folder) {
  const auto quota = read_text(folder / "cpu.cfs_quota_us");
  const auto period = read_text(folder / "cpu.cfs_period_us");
  return quota && period ? cpu_max(*quota + " " + *period) : std::nullopt;
}

std::optional<double> quota_v2(const fs::path& folder) {
  const auto text = read_text(folder / "cpu.max");
  return text ? cpu_max(*text) : std::nullopt;
}

template <typename Read>
std::optional<double> tightest(const fs::path& mount, const std::string& path, Read read) {
  std::optional<double> cpus = read(mount);
  fs::path below = fs::path(path).relative_path().lexically_normal();
  while (!below.empty() && below != ".") {
    if (const auto here = read(mount / below)) {
      cpus = std::min(cpus.value_or(*here), *here);
    }
    below = below.parent_path();
  }
  return cpus;
}

}  // namespace

std::optional<double> cpu_max(std::string_view text) {
  std::istringstream fields{std::string(text)};
  double quota = 0;
  double period = 0;
  fields >> quota >> period;  // "max" fails to parse, and v1 writes −1: no quota
  return fields && quota > 0 && period > 0 ? std::optional(quota / period) : std::nullopt;
}

std::optional<int> cgroup_cpus(const fs::path& root) {
  const std::string cgroups = read_text(root / "proc/self/cgroup").value_or("");
  std::optional<double> cpus;
  if (const auto path = cgroup_path(cgroups, "")) {
    cpus = tightest(root / "sys/fs/cgroup", *path, quota_v2);
  }
  if (const auto path = cgroup_path(cgroups, "cpu")) {
    if (const auto v1 = tightest(root / "sys/fs/cgroup/cpu", *path, quota_v1)) {
      cpus = std::min(cpus.value_or(*v1), *v1);
    }
  }
  return cpus ? std::optional(std::max(1, static_cast<int>(std::floor(*cpus)))) : std::nullopt;
}

int available_threads() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  const int affinity = ::sched_getaffinity(0, sizeof(allowed), &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
  return std::max(1, std::min(affinity, cgroup_cpus("/").value_or(affinity)));
}

}  // namespace gradsync::device
