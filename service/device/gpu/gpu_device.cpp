#include "device/gpu/gpu_device.hpp"

#include "base/clock.hpp"
#include "device/device_error.hpp"
#include "device/gpu/gpu_outputs.hpp"
#include "device/gpu/gpu_streams.hpp"
#include "device/memory/mapped_buffer.hpp"
#include "device/transfer/node_copies.hpp"
#include "device/transfer/node_outputs.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

namespace gradsync::device {

namespace {

/// An arena of the CPU that a GPU reaches.
class MappedOnGpu final : public LaneBuffer {
 public:
  MappedOnGpu(MappedBuffer buffer, const KernelLibrary& library) : buffer_(std::move(buffer)), library_(library) {
    void* address = nullptr;
    library_.must(library_.map_host(buffer_.data(), buffer_.size_bytes(), &address), "mapping a buffer on the GPU");
    on_device_ = static_cast<std::byte*>(address);
  }

  MappedOnGpu(const MappedOnGpu&) = delete;
  MappedOnGpu& operator=(const MappedOnGpu&) = delete;

  ~MappedOnGpu() override {
    if (library_.unmap_host(buffer_.data()) != 0) {
      spdlog::error("a buffer could not be unmapped from the GPU");
    }
  }

  [[nodiscard]] BufferView for_passes() const override { return {on_device_, buffer_.size_bytes()}; }

  [[nodiscard]] BufferView for_host() const override { return {buffer_.data(), buffer_.size_bytes()}; }

  void punch_out() const override { buffer_.punch_out(); }

 private:
  MappedBuffer buffer_;
  const KernelLibrary& library_;
  std::byte* on_device_ = nullptr;
};

/// Staging memory on the GPU, and the passes over the tables of the plan.
class GpuBlockWork final : public BlockWork {
 public:
  GpuBlockWork(
      const KernelLibrary& library,
      LoadedPlan& plan,
      GpuBlocks& blocks,
      std::uint64_t staging_bytes,
      const std::atomic<bool>& cancel
  )
      : library_(library),
        plan_(plan),
        blocks_(blocks),
        cancel_(cancel),
        staging_(allocated_on_gpu(
            library, std::max<std::uint64_t>(staging_bytes, 1), "staging memory for collectives"  // nothing may travel
        )) {}

  [[nodiscard]] std::byte* memory() const override { return staging_.get(); }

  void write(std::byte* to, const void* from, std::size_t bytes) override {
    const auto* const first = static_cast<const std::byte*>(from);
    const std::vector<std::byte>& kept = sent_.emplace_back(first, first + bytes);
    library_.must(library_.send(to, kept.data(), bytes), "writing to staging memory");
  }

  void read(void* to, const std::byte* from, std::size_t bytes) const override {
    library_.must(library_.read(to, from, bytes), "reading staging memory");
  }

  void add(BlockTask::Kind kind, std::uint32_t bucket, const NodeBlock& block, const StagedBlock& staged) override {
    tasks_.push_back({kind, bucket, &block, &staged, {}});
  }

  void run() override {
    const std::vector<BlockTask> tasks = std::exchange(tasks_, {});
    for (const BlockTask& task : tasks) {
      if (cancel_.load(std::memory_order_relaxed)) {
        break;
      }
      blocks_.run(plan_, task.kind, task.bucket, *task.block, *task.staged);
    }
    library_.must(library_.wait(), "writing to staging memory");
    sent_.clear();
  }

 private:
  const KernelLibrary& library_;
  LoadedPlan& plan_;
  GpuBlocks& blocks_;
  const std::atomic<bool>& cancel_;
  std::unique_ptr<std::byte, ReleaseOnGpu> staging_;
  std::vector<BlockTask> tasks_;
  std::vector<std::vector<std::byte>> sent_;  ///< that the device may still read, until the next wait
};

bool holds_back(const plan::ClipOutcome& outcome) {
  return outcome.action == plan::StepAction::Skip || outcome.action == plan::StepAction::Raise;
}

bool changes(const plan::ClipOutcome& outcome) {
  return outcome.action == plan::StepAction::Zero || (outcome.multiply && outcome.multiplier != 1);
}

}  // namespace

GpuDevice::GpuDevice(GpuDeviceOptions options, const std::atomic<bool>& cancel)
    : options_(std::move(options)), cancel_(cancel), library_(options_.library), pool_(1, "lane:gpu") {
  if (options_.nccl) {
    collectives_ = std::make_unique<LaneCollectives>(
        *options_.nccl, std::make_unique<GpuCollectiveDevice>(library_, options_.uuid)
    );
  }
}

void GpuDevice::open() {
  if (!opened_) {
    library_.must(library_.open(options_.uuid.empty() ? nullptr : options_.uuid.c_str()), "opening the GPU");
    opened_ = true;
  }
}

std::unique_ptr<LaneBuffer> GpuDevice::map(UniqueFd fd, std::uint64_t size_bytes) {
  open();
  return std::make_unique<MappedOnGpu>(MappedBuffer(std::move(fd), size_bytes, pool_), library_);
}

std::unique_ptr<LaneBuffer> GpuDevice::map_exported(const ExportedMemory& memory, std::uint64_t size_bytes) {
  open();
  return imported_.map(memory, size_bytes);
}

Probe GpuDevice::probe(const ExportedMemory& memory, std::uint64_t size_bytes) {
  const auto begin = std::chrono::steady_clock::now();
  open();
  const double opening_s = seconds(std::chrono::steady_clock::now() - begin);
  Probe found = imported_.probe(memory, size_bytes);
  found.open_s += opening_s;
  return found;
}

void GpuDevice::load(LoadedPlan& plan) {
  open();
  plans_[&plan] = std::make_unique<GpuPlan>(library_, plan);
}

void GpuDevice::unload(const LoadedPlan& plan) noexcept { plans_.erase(&plan); }

GpuPlan& GpuDevice::tables_of(const LoadedPlan& plan) const { return *plans_.at(&plan); }

void GpuDevice::reduce(LoadedPlan& plan, const ReduceBucket& command) const {
  throw_if_cancelled();
  tables_of(plan).reduce(plan, command.bucket, command.compare);
  throw_if_cancelled();
}

void GpuDevice::sum_again(LoadedPlan& plan) const {
  throw_if_cancelled();
  tables_of(plan).sum_again(plan);
}

double GpuDevice::multiply(LoadedPlan& plan, const std::vector<plan::ClipOutcome>& outcomes, Copies /*copies*/) const {
  throw_if_cancelled();
  if (std::any_of(outcomes.begin(), outcomes.end(), holds_back) ||
      std::none_of(outcomes.begin(), outcomes.end(), changes)) {
    return 0;
  }
  const auto start = std::chrono::steady_clock::now();
  tables_of(plan).multiply(plan, outcomes);
  throw_if_cancelled();
  return seconds(std::chrono::steady_clock::now() - start);
}

double GpuDevice::write_deferred(LoadedPlan& /*plan*/) const { return 0; }

std::unique_ptr<BlockWork> GpuDevice::make_blocks(LoadedPlan& plan, std::uint64_t staging_bytes) {
  return std::make_unique<GpuBlockWork>(library_, plan, tables_of(plan).blocks(), staging_bytes, cancel_);
}

void GpuDevice::compare_results(LoadedPlan& plan, std::uint32_t bucket) {
  GpuOutputs outputs(library_);
  device::compare_results(plan, bucket, outputs, pool_, cancel_);
  outputs.throw_if_failed();
}

double GpuDevice::scale_outputs(LoadedPlan& plan, const ScaleGradients& command) {
  throw_if_cancelled();
  const OutputScaling scaling(plan, command);
  if (!scaling.needed()) {
    return 0;
  }
  const auto start = std::chrono::steady_clock::now();
  tables_of(plan).scale_outputs(plan, command, scaling);
  throw_if_cancelled();
  return seconds(std::chrono::steady_clock::now() - start);
}

RowsRead GpuDevice::read_copies(const LoadedPlan& plan, const ReadRows& command) {
  GpuOutputs outputs(library_);
  RowsRead read = device::read_copies(plan, command, outputs, pool_, cancel_);
  outputs.throw_if_failed();
  return read;
}

void GpuDevice::throw_if_cancelled() const {
  if (cancel_.load(std::memory_order_relaxed)) {
    throw DeviceError("aborted", DeviceError::Kind::Aborted);
  }
}

}  // namespace gradsync::device
