#include "device/gpu/gpu_device.hpp"

#include "base/clock.hpp"
#include "device/device_error.hpp"
#include "device/memory/mapped_buffer.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <utility>

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

bool holds_back(const plan::ClipOutcome& outcome) {
  return outcome.action == plan::StepAction::Skip || outcome.action == plan::StepAction::Raise;
}

bool changes(const plan::ClipOutcome& outcome) {
  return outcome.action == plan::StepAction::Zero || (outcome.multiply && outcome.multiplier != 1);
}

}  // namespace

GpuDevice::GpuDevice(GpuDeviceOptions options, const std::atomic<bool>& cancel)
    : options_(std::move(options)), cancel_(cancel), library_(options_.library), pool_(1, "lane:gpu") {}

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

void GpuDevice::throw_if_cancelled() const {
  if (cancel_.load(std::memory_order_relaxed)) {
    throw DeviceError("aborted", DeviceError::Kind::Aborted);
  }
}

}  // namespace gradsync::device
