#include "device/nccl/collective_device.hpp"

#include "device/nccl/abort_thread.hpp"

#include <chrono>
#include <utility>

namespace gradsync::device {

std::unique_ptr<NcclLibrary> CollectiveDevice::open(const std::string& path) {
  return std::make_unique<NcclLibrary>(path);
}

std::unique_ptr<GroupAborts> CollectiveDevice::make_aborts(const NcclLibrary& library, std::function<void()> wake) {
  return std::make_unique<AbortThread>(
      library, [this] { use_on_this_thread(); }, std::move(wake)
  );
}

TimePoint CollectiveDevice::now() const { return std::chrono::steady_clock::now(); }

}  // namespace gradsync::device
