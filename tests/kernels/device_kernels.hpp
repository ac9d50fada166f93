#pragma once
// kernels/*.cu behind the interface of the conformance suite.

#include "kernels/device_memory.hpp"
#include "kernels/implementation.hpp"
#include "kernels/placed_table.hpp"

namespace gradsync::kernels {

std::unique_ptr<Implementation> make_device_kernels();

/// Empty when there is a device, else the reason in words.
std::string missing_device();

/// Tensors on the device, each in an allocation that ends with its last byte, and their table.
class DeviceTensors {
 public:
  explicit DeviceTensors(const std::vector<HostTensor>& tensors);

  [[nodiscard]] DeviceTable table() const { return table_.table(); }

  [[nodiscard]] void* scratch() const { return table_.scratch().get(); }

  void read_back(std::vector<HostTensor>& tensors) const;
  /// The invariant of scratch.hpp.
  [[nodiscard]] bool counters_are_zero() const;

 private:
  std::vector<DeviceMemory> memory_;
  PlacedTable table_;
};

}  // namespace gradsync::kernels
