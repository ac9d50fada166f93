#include "app/doctor/machine.hpp"

#include "app/daemon/gpu_workers.hpp"
#include "base/text/text.hpp"
#include "device/memory/memory_headroom.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sys/resource.h>
#include <system_error>

#include <algorithm>
#include <limits>

namespace gradsync::app {

namespace {

namespace fs = std::filesystem;
using enum Finding::Level;

constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint64_t kFewDescriptors = 4096;
constexpr std::uint64_t kLittleMemory = std::uint64_t{1} << 30;
constexpr std::uint64_t kLittleSharedMemory = std::uint64_t{1} << 30;

std::uint64_t limit_of(decltype(RLIMIT_NOFILE) which, bool hard) {
  rlimit limit{};
  if (::getrlimit(which, &limit) != 0) {
    return 0;
  }
  const rlim_t value = hard ? limit.rlim_max : limit.rlim_cur;
  return value == RLIM_INFINITY ? kUnlimited : value;
}

/// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul …" → 580.65.06: the first word that is made of
/// numbers and dots.
std::optional<std::string> driver_version(const std::optional<std::string>& text) {
  if (!text) {
    return std::nullopt;
  }
  const std::string line = text->substr(0, text->find('\n'));
  for (std::size_t at = 0; at < line.size();) {
    const std::size_t end = std::min(line.find(' ', at), line.size());
    const std::string word = line.substr(at, end - at);
    if (word.find('.') != std::string::npos && word.find_first_not_of("0123456789.") == std::string::npos) {
      return word;
    }
    at = end + 1;
  }
  return "unknown";
}

std::string value_of(const Environment& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found == environment.end() ? "" : found->second;
}

void add_gpus(const Machine& machine, const GpuSection& gpu, std::vector<Finding>& found) {
  const std::vector<std::string> used = usable_gpus(gpu, machine.gpus);
  if (gpu.kernels == "off") {
    found.push_back({Note, "GPUs are switched off ([gpu] kernels=off): gradients on CPUs are served"});
    return;
  }
  if (!machine.driver && used.empty()) {
    found.push_back(
        {Note,
         "no driver of NVIDIA is visible here: gradients on CPUs are served",
         "in a container: give it the GPUs of the trainers (nvidia runtime, or DRA)"}
    );
    return;
  }
  found.push_back({machine.driver ? Ok : Note, fmt::format("driver of NVIDIA: {}", machine.driver.value_or("none"))});
  if (used.empty()) {
    found.push_back(
        {Problem,
         "the driver lists no GPU",
         "give this container the GPUs of the trainers, or name UUIDs in [gpu] devices"}
    );
    return;
  }
  found.push_back({Ok, fmt::format("GPUs: {}", fmt::join(used, ", "))});
  for (const std::string& uuid : used) {
    if (!machine.gpus.empty() && std::find(machine.gpus.begin(), machine.gpus.end(), uuid) == machine.gpus.end()) {
      found.push_back(
          {Problem,
           fmt::format("[gpu] devices names {}, which the driver does not list", uuid),
           fmt::format("it lists {}", fmt::join(machine.gpus, ", "))}
      );
    }
  }
  if (machine.kernels.empty()) {
    found.push_back(
        {Problem,
         gpu.kernels.empty() ? "there is no libgradsync_kernels.so beside this program"
                             : fmt::format("there is no {} ([gpu] kernels)", gpu.kernels),
         "install the wheel, which brings it, or set [gpu] kernels to its path"}
    );
  } else {
    found.push_back({Ok, fmt::format("kernels: {}", machine.kernels)});
  }
  if (machine.mps) {
    found.push_back(
        {Note,
         "MPS seems to run on this machine",
         "trainers and daemon both use it or neither does; a fault of one of its clients ends all"}
    );
  }
}

void add_environment(const Machine& machine, std::vector<Finding>& found) {
  for (const char* name : {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}) {
    if (value_of(machine.environment, name).find("expandable_segments:True") != std::string::npos) {
      found.push_back(
          {Note,
           fmt::format("{} has expandable_segments", name),
           "memory of torch's own cannot be shared then; gradsync allocates gradients itself"}
      );
    }
  }
  if (value_of(machine.environment, "CUDA_LAUNCH_BLOCKING") == "1") {
    found.push_back({Note, "CUDA_LAUNCH_BLOCKING=1: every kernel is waited for", "unset it, but for debugging"});
  }
}

void add_limits(const Machine& machine, std::vector<Finding>& found) {
  const bool little = machine.memory_bytes < kLittleMemory;
  found.push_back(
      {little ? Problem : Ok,
       fmt::format("memory for gradients on CPUs: {}", human_bytes(machine.memory_bytes)),
       little ? "raise the memory limit of the container, or free memory" : ""}
  );
  // The daemon has no use for it; the trainers, which usually share it, have.
  const bool little_shared = machine.shared_bytes < kLittleSharedMemory;
  found.push_back(
      {little_shared ? Note : Ok,
       machine.shared_bytes == 0 ? "there is no /dev/shm"
                                 : fmt::format("/dev/shm: {}", human_bytes(machine.shared_bytes)),
       little_shared
           ? "NCCL, Gloo and data loaders of trainers need more: docker run --shm-size, or an emptyDir of medium "
             "Memory"
           : ""}
  );
  const bool few = machine.descriptors < kFewDescriptors;
  found.push_back(
      {few ? Problem : Ok,
       machine.descriptors == kUnlimited ? "file descriptors: unlimited"
                                         : fmt::format("file descriptors: {}", machine.descriptors),
       few ? fmt::format("raise the hard limit (LimitNOFILE, ulimit -Hn) to {} or more", kFewDescriptors) : ""}
  );
  found.push_back(
      {Ok,
       machine.locked_bytes == kUnlimited ? "locked memory: unlimited"
                                          : fmt::format("locked memory: {}", human_bytes(machine.locked_bytes))}
  );
  if (!machine.pid_namespace.empty()) {
    found.push_back(
        {Ok, fmt::format("PID namespace: {}; trainers with GPUs belong into the same", machine.pid_namespace), ""}
    );
  }
}

}  // namespace

Machine read_machine(
    const fs::path& root, const Environment& environment, const GpuSection& gpu, const std::string& program
) {
  Machine machine;
  machine.driver = driver_version(device::read_text(root / "proc/driver/nvidia/version"));
  machine.gpus = gpus_listed_in((root / "proc/driver/nvidia/gpus").string());
  machine.kernels = gpu.kernels == "off" ? "" : find_kernels(gpu.kernels, program);
  machine.memory_bytes = device::memory_headroom_of(root).free_bytes;
  machine.locked_bytes = limit_of(RLIMIT_MEMLOCK, false);
  machine.descriptors = limit_of(RLIMIT_NOFILE, true);
  std::error_code missing;
  const fs::space_info shared = fs::space(root / "dev/shm", missing);
  machine.shared_bytes = missing ? 0 : shared.capacity;
  machine.pid_namespace = fs::read_symlink(root / "proc/self/ns/pid", missing).string();
  const std::string pipes = value_of(environment, "CUDA_MPS_PIPE_DIRECTORY");
  machine.mps = fs::exists((pipes.empty() ? root / "tmp/nvidia-mps" : fs::path(pipes)) / "control", missing);
  machine.environment = environment;
  return machine;
}

std::vector<Finding> findings_of(const Machine& machine, const GpuSection& gpu) {
  std::vector<Finding> found;
  add_gpus(machine, gpu, found);
  add_environment(machine, found);
  add_limits(machine, found);
  return found;
}

}  // namespace gradsync::app
