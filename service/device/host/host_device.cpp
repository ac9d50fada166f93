#include "device/host/host_device.hpp"

#include "device/memory/mapped_buffer.hpp"
#include "device/nccl/host_stream.hpp"

#include <algorithm>
#include <utility>

namespace gradsync::device {

namespace {

class HostBuffer final : public LaneBuffer {
 public:
  explicit HostBuffer(MappedBuffer buffer) : buffer_(std::move(buffer)) {}

  [[nodiscard]] BufferView for_passes() const override { return for_host(); }

  [[nodiscard]] BufferView for_host() const override { return {buffer_.data(), buffer_.size_bytes()}; }

  void punch_out() const override { buffer_.punch_out(); }

 private:
  MappedBuffer buffer_;
};

}  // namespace

HostDevice::HostDevice(int threads, const std::atomic<bool>& cancel, std::optional<NcclOptions> nccl)
    : HostDevice(
          threads,
          cancel,
          nccl ? std::make_unique<LaneCollectives>(std::move(*nccl), std::make_unique<HostCollectiveDevice>()) : nullptr
      ) {}

HostDevice::HostDevice(int threads, const std::atomic<bool>& cancel, std::unique_ptr<LaneCollectives> collectives)
    : pool_(threads, "lane:host"),
      passes_(pool_, cancel),
      node_passes_(pool_, cancel),
      collectives_(std::move(collectives)) {}

std::unique_ptr<LaneBuffer> HostDevice::map(UniqueFd fd, std::uint64_t size_bytes) {
  return std::make_unique<HostBuffer>(MappedBuffer(std::move(fd), size_bytes, pool_));
}

void HostDevice::set_width(bool wide) { pool_.set_width(wide ? pool_.threads() : std::max(1, pool_.threads() / 2)); }

}  // namespace gradsync::device
