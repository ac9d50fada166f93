#include "sim/collectives/stepped_gpu.hpp"

#include "device/device_error.hpp"
#include "sim/world.hpp"

#include <fmt/format.h>

#include <utility>

namespace gradsync::sim {

namespace {

class GpuBuffer final : public device::LaneBuffer {
 public:
  explicit GpuBuffer(const Mapping& memory) : memory_(memory.descriptor(), memory.bytes(), true) {}

  [[nodiscard]] device::BufferView for_passes() const override { return for_host(); }

  [[nodiscard]] device::BufferView for_host() const override { return {memory_.data(), memory_.bytes()}; }

  void punch_out() const override {}  // its pages are those of its process

 private:
  Mapping memory_;
};

}  // namespace

SteppedGpu::SteppedGpu(
    World& world, std::string gpu, const std::atomic<bool>& cancel, std::unique_ptr<device::LaneCollectives> collectives
)
    : world_(world), gpu_(std::move(gpu)), host_(1, cancel, std::move(collectives)) {}

std::unique_ptr<device::LaneBuffer> SteppedGpu::map(UniqueFd fd, std::uint64_t size_bytes) {
  world_.breach(gpu_ + " has memory of the CPU mapped");
  return host_.map(std::move(fd), size_bytes);
}

std::unique_ptr<device::LaneBuffer> SteppedGpu::map_exported(
    const device::ExportedMemory& memory, std::uint64_t /*size_bytes*/
) {
  const Gpus::Memory& found = world_.gpus().find(memory.handle);
  if (found.gpu != gpu_) {
    world_.breach(fmt::format("{} has memory of {} mapped", gpu_, found.gpu));
  }
  const std::shared_ptr<const Mapping> mapping = found.memory.lock();
  if (mapping == nullptr) {
    throw device::DeviceError("the process of this memory has ended", "export memory of a process that lives");
  }
  return std::make_unique<GpuBuffer>(*mapping);
}

}  // namespace gradsync::sim
