#pragma once
// The workers of GPUs: `gradsyncd worker --kernels … --gpu UUID --nccl …`, a process each, started when the first
// buffer of its GPU is registered; NCCL is opened there by the first plan that needs it. This process never loads CUDA:
// what GPUs there are it reads from the driver's files. Beside them the worker that adds up memory of CPUs by a library
// with NCCL's interface, `gradsyncd worker --nccl …`: this process never loads that either.
//
// Thread: io, but for the sink, which is called on the threads of the lanes.

#include "app/config/options.hpp"
#include "device/process/process_lane.hpp"
#include "engine/gpu_lanes.hpp"

#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace gradsync::app {

class GpuWorkers final : public engine::GpuLanes {
 public:
  using Sink = std::function<void(device::LaneId, device::LaneReport)>;

  /// `threads`: of the worker that works on memory of CPUs; 0: what affinity and cgroup allow.
  GpuWorkers(GpuSection options, NcclSection nccl, std::int64_t threads, Sink sink)
      : options_(std::move(options)), nccl_(std::move(nccl)), threads_(threads), sink_(std::move(sink)) {}

  [[nodiscard]] Result<device::Lane*> start(device::LaneId id, const std::string& gpu) override;
  [[nodiscard]] Result<device::Lane*> start_cpu_collectives(device::LaneId id) override;
  [[nodiscard]] Result<void> may_collect() const override;
  void stop(device::LaneId id) override;

 private:
  void add_nccl(device::ProcessLaneOptions& lane) const;
  [[nodiscard]] device::Lane* add(device::LaneId id, device::ProcessLaneOptions lane);

  GpuSection options_;
  NcclSection nccl_;
  std::int64_t threads_;
  Sink sink_;
  std::map<device::LaneId, std::unique_ptr<device::ProcessLane>> lanes_;
  std::vector<std::future<void>> ending_;  ///< a worker that ends takes its time, which the io thread has not
};

/// "GPU-1, GPU-2" in its parts.
[[nodiscard]] std::vector<std::string> listed_gpus(const std::string& text);

/// Those that may be used: as configured, else `listed` by the driver.
[[nodiscard]] std::vector<std::string> usable_gpus(const GpuSection& options, std::vector<std::string> listed);

/// The GPUs of this machine that may be used; none where GPUs are switched off.
[[nodiscard]] std::vector<std::string> usable_gpus(const GpuSection& options);

/// The path of this executable; empty: unknown.
[[nodiscard]] std::string this_program();

/// The library of kernels: as configured, else where the package has it or the build puts it; empty: none is there.
[[nodiscard]] std::string find_kernels(const std::string& configured, const std::string& program = this_program());

/// The UUIDs of the GPUs that the driver's folder, usually /proc/driver/nvidia/gpus, tells of.
[[nodiscard]] std::vector<std::string> gpus_listed_in(const std::string& folder);

}  // namespace gradsync::app
