#pragma once
// What collectives of a worker get in place of a GPU, a thread for aborts, and libnccl.so.2: the virtual ones of its
// world.

#include "device/nccl/collective_device.hpp"
#include "sim/collectives/nccl_network.hpp"

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace gradsync::sim {

/// The process that calls NCCL on this thread, as long as this is there: NCCL's functions have no argument for it.
class Calling {
 public:
  Calling(NcclNetwork& network, NcclNetwork::Process process);
  ~Calling();
  Calling(const Calling&) = delete;
  Calling& operator=(const Calling&) = delete;
};

class SteppedDevice final : public device::CollectiveDevice {
 public:
  SteppedDevice(World& world, NcclNetwork::Process process) : world_(world), process_(process) {}

  [[nodiscard]] std::unique_ptr<device::CollectiveStream> make_stream() override;
  [[nodiscard]] std::byte* allocate(std::size_t bytes) override;
  [[nodiscard]] std::unique_ptr<device::NcclLibrary> open(const std::string& path) override;
  [[nodiscard]] std::unique_ptr<device::GroupAborts> make_aborts(
      const device::NcclLibrary& library, std::function<void()> wake
  ) override;
  [[nodiscard]] TimePoint now() const override;

  [[nodiscard]] bool has_threads() const override { return false; }

 private:
  World& world_;
  NcclNetwork::Process process_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

}  // namespace gradsync::sim
