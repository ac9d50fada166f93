#pragma once
// One GPU as the device of a lane, in the process of a worker: memory that it reaches, and the kernels of
// libgradsync_kernels.so for its passes. The bits are those of the CPU engine (docs/adr/0027).
//
// Thread: that of the lane alone. CUDA keeps the device of each thread, so it is opened by the first call that maps.

#include "device/collective/lane_collectives.hpp"
#include "device/gpu/gpu_plan.hpp"
#include "device/gpu/imported_memory.hpp"
#include "device/host/worker_pool.hpp"
#include "device/queue/lane_device.hpp"

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

namespace gradsync::device {

struct GpuDeviceOptions {
  std::string library;  ///< path of libgradsync_kernels.so
  std::string uuid;     ///< "GPU-…"; empty: the first device
  std::optional<NcclOptions> nccl = {};
};

class GpuDevice final : public LaneDevice, private StepPasses, private NodePasses {
 public:
  /// Throws DeviceError where the library cannot be used.
  GpuDevice(GpuDeviceOptions options, const std::atomic<bool>& cancel);

  [[nodiscard]] std::string thread_name() const override { return "lane:gpu"; }

  [[nodiscard]] std::unique_ptr<LaneBuffer> map(UniqueFd fd, std::uint64_t size_bytes) override;
  [[nodiscard]] std::unique_ptr<LaneBuffer> map_exported(const ExportedMemory& memory, std::uint64_t size_bytes)
      override;
  [[nodiscard]] Probe probe(const ExportedMemory& memory, std::uint64_t size_bytes) override;
  void load(LoadedPlan& plan) override;
  void unload(const LoadedPlan& plan) noexcept override;

  [[nodiscard]] const StepPasses& passes() const override { return *this; }

  [[nodiscard]] NodePasses& node_passes() override { return *this; }

  [[nodiscard]] LaneCollectives* collectives() override { return collectives_.get(); }

 private:
  void reduce(LoadedPlan& plan, const ReduceBucket& command) const override;
  void sum_again(LoadedPlan& plan) const override;
  [[nodiscard]] double multiply(LoadedPlan& plan, const std::vector<plan::ClipOutcome>& outcomes, Copies copies)
      const override;
  [[nodiscard]] double write_deferred(LoadedPlan& plan) const override;
  void throw_if_cancelled() const override;

  [[nodiscard]] std::unique_ptr<BlockWork> make_blocks(LoadedPlan& plan, std::uint64_t staging_bytes) override;
  void compare_results(LoadedPlan& plan, std::uint32_t bucket) override;
  [[nodiscard]] double scale_outputs(LoadedPlan& plan, const ScaleGradients& command) override;
  [[nodiscard]] RowsRead read_copies(const LoadedPlan& plan, const ReadRows& command) override;

  [[nodiscard]] GpuPlan& tables_of(const LoadedPlan& plan) const;
  void open();

  GpuDeviceOptions options_;
  const std::atomic<bool>& cancel_;
  KernelLibrary library_;
  ImportedMemory imported_{library_};
  WorkerPool pool_;  ///< one thread, which touches pages of arenas and compares results
  bool opened_ = false;
  std::map<const LoadedPlan*, std::unique_ptr<GpuPlan>> plans_;
  std::unique_ptr<LaneCollectives> collectives_;
};

}  // namespace gradsync::device
