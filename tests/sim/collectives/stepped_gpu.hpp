#pragma once
// A GPU as the device of a lane: its passes are those of CPUs, whose bits they have, and its memory is that of ranks,
// which map it as well.

#include "device/host/host_device.hpp"
#include "device/queue/lane_device.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

namespace gradsync::sim {

class World;

class SteppedGpu final : public device::LaneDevice {
 public:
  SteppedGpu(
      World& world,
      std::string gpu,
      const std::atomic<bool>& cancel,
      std::unique_ptr<device::LaneCollectives> collectives
  );

  [[nodiscard]] std::string thread_name() const override { return "lane:gpu"; }

  [[nodiscard]] std::unique_ptr<device::LaneBuffer> map(UniqueFd fd, std::uint64_t size_bytes) override;
  /// A breach where it lies on another GPU: a site has memory of its own.
  [[nodiscard]] std::unique_ptr<device::LaneBuffer> map_exported(
      const device::ExportedMemory& memory, std::uint64_t size_bytes
  ) override;

  [[nodiscard]] const device::StepPasses& passes() const override { return host_.passes(); }

  [[nodiscard]] device::NodePasses& node_passes() override { return host_.node_passes(); }

  [[nodiscard]] device::LaneCollectives* collectives() override { return host_.collectives(); }

 private:
  World& world_;
  std::string gpu_;
  device::HostDevice host_;
};

}  // namespace gradsync::sim
