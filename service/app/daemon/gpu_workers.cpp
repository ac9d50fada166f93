#include "app/daemon/gpu_workers.hpp"

#include "app/config/configuration.hpp"
#include "app/doctor/nccl_check.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <system_error>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <future>
#include <sstream>
#include <utility>

namespace gradsync::app {

namespace {

namespace fs = std::filesystem;

constexpr const char* kListed = "/proc/driver/nvidia/gpus";
constexpr const char* kLoaderFinds = "libnccl.so.2";
constexpr Milliseconds kBeyondWorker{30'000};  ///< what the worker allows itself: it says what was late

Error no_gpu(std::string message, std::string hint) {
  return make_error(ErrorCode::NoGpu, std::move(message), std::move(hint));
}

}  // namespace

Result<device::Lane*> GpuWorkers::start(device::LaneId id, const std::string& gpu) {
  if (options_.kernels == "off") {
    return no_gpu("GPUs are switched off here ([gpu] kernels=off)", "keep the gradients on the CPU");
  }
  const std::vector<std::string> known = usable_gpus(options_);
  if (known.empty()) {
    return no_gpu(
        fmt::format("no driver of NVIDIA is visible to the daemon: {} lists no GPU", kListed),
        "give the daemon's container the GPU, or name UUIDs in [gpu] devices; gradients on CPUs are served"
    );
  }
  if (std::find(known.begin(), known.end(), gpu) == known.end()) {
    return no_gpu(
        fmt::format("the daemon does not see the GPU {}; it sees {}", gpu, fmt::join(known, ", ")),
        "give the daemon's container the same GPUs as the trainers'"
    );
  }
  const std::string kernels = find_kernels(options_.kernels);
  if (kernels.empty()) {
    return no_gpu(
        options_.kernels.empty() ? "the daemon has no libgradsync_kernels.so"
                                 : fmt::format("there is no {} ([gpu] kernels)", options_.kernels),
        "install the wheel, which brings it, or set [gpu] kernels to its path"
    );
  }
  device::ProcessLaneOptions lane;
  lane.command = {"/proc/self/exe", "worker", "--kernels", kernels, "--gpu", gpu};
  lane.environment = {"CUDA_VISIBLE_DEVICES=" + gpu, "CUDA_MODULE_LOADING=EAGER"};
  lane.import_deadline = Milliseconds(options_.map_ms);
  lane.other_deadline = Milliseconds(options_.plan_ms);
  lane.abort_deadline = Milliseconds(options_.abort_ms);
  if (nccl_.library != "off") {
    add_nccl(lane);
  }
  spdlog::info("a worker starts gpu={} kernels={}", gpu, kernels);
  return add(id, std::move(lane));
}

Result<void> GpuWorkers::may_collect() const {
  if (nccl_.library == "off") {
    return make_error(
        ErrorCode::UnsupportedPlacement,
        "NCCL is switched off here ([nccl] library=off), and gradients on several GPUs of a job travel by it",
        "set [nccl] library to libnccl.so.2, or declare with data path stats: the framework reduces then"
    );
  }
  const Environment environment = process_environment();
  if (const auto fixed = environment.find("NCCL_COMM_ID"); fixed != environment.end()) {
    return make_error(
        ErrorCode::UnsupportedPlacement,
        fmt::format(
            "NCCL_COMM_ID={}: communicators of every epoch would have one address and one magic", fixed->second
        ),
        "unset it for the daemon"
    );
  }
  return {};
}

Result<device::Lane*> GpuWorkers::start_cpu_collectives(device::LaneId id) {
  if (const Result<void> may = may_collect(); !may) {
    return may.error();
  }
  device::ProcessLaneOptions lane;
  lane.command = {"/proc/self/exe", "worker", "--threads", std::to_string(threads_)};
  add_nccl(lane);
  spdlog::info("a worker starts nccl={}", nccl_.library);
  return add(id, std::move(lane));
}

void GpuWorkers::add_nccl(device::ProcessLaneOptions& lane) const {
  lane.command.insert(lane.command.end(), {"--nccl", nccl_.library.empty() ? kLoaderFinds : nccl_.library});
  const auto add_flag = [&](const char* flag, std::int64_t value) {
    lane.command.push_back(fmt::format("{}={}", flag, value));
  };
  add_flag("--nccl-max-ctas", nccl_.max_ctas);
  add_flag("--nccl-cga-cluster", nccl_.cga_cluster);
  add_flag("--nccl-traffic-class", nccl_.traffic_class);
  add_flag("--nccl-init-ms", nccl_.init_ms);
  add_flag("--nccl-abort-ms", nccl_.abort_ms);
  const std::vector<std::string> environment = nccl_environment_of(nccl_);
  lane.environment.insert(lane.environment.end(), environment.begin(), environment.end());
  lane.connect_deadline = Milliseconds(nccl_.init_ms) + kBeyondWorker;
  lane.nccl_abort_deadline = Milliseconds(nccl_.abort_ms) + kBeyondWorker;
}

device::Lane* GpuWorkers::add(device::LaneId id, device::ProcessLaneOptions lane) {
  auto started = std::make_unique<device::ProcessLane>(std::move(lane), [this, id](device::LaneReport report) {
    sink_(id, std::move(report));
  });
  return lanes_.emplace(id, std::move(started)).first->second.get();
}

void GpuWorkers::stop(device::LaneId id) {
  std::erase_if(ending_, [](const std::future<void>& ending) {
    return ending.wait_for(Milliseconds(0)) == std::future_status::ready;
  });
  if (auto lane = lanes_.extract(id)) {
    ending_.push_back(std::async(std::launch::async, [ended = std::move(lane.mapped())]() mutable { ended.reset(); }));
  }
}

std::vector<std::string> listed_gpus(const std::string& text) {
  std::vector<std::string> found;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const std::size_t begin = part.find_first_not_of(' ');
    if (begin != std::string::npos) {
      found.push_back(part.substr(begin, part.find_last_not_of(' ') + 1 - begin));
    }
  }
  return found;
}

std::vector<std::string> usable_gpus(const GpuSection& options, std::vector<std::string> listed) {
  return options.devices.empty() ? std::move(listed) : listed_gpus(options.devices);
}

std::vector<std::string> usable_gpus(const GpuSection& options) {
  return options.kernels == "off" ? std::vector<std::string>() : usable_gpus(options, gpus_listed_in(kListed));
}

std::string this_program() {
  std::error_code unknown;
  return fs::read_symlink("/proc/self/exe", unknown);
}

std::string find_kernels(const std::string& configured, const std::string& program) {
  std::error_code missing;
  if (!configured.empty()) {
    return fs::exists(configured, missing) ? configured : "";
  }
  const fs::path folder = fs::path(program).parent_path().parent_path();
  const fs::path beside = folder / "lib" / "libgradsync_kernels.so";
  return fs::exists(beside, missing) ? beside.string() : "";
}

std::vector<std::string> gpus_listed_in(const std::string& folder) {
  std::vector<std::string> found;
  std::error_code missing;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, missing)) {
    std::ifstream information(entry.path() / "information");
    for (std::string line; std::getline(information, line);) {
      if (line.starts_with("GPU UUID:")) {
        const std::size_t begin = line.find("GPU-");
        if (begin != std::string::npos) {
          found.push_back(line.substr(begin, line.find_last_not_of(" \t\r") + 1 - begin));
        }
      }
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace gradsync::app
