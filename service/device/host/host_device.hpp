#pragma once
// The CPU engine as the device of a lane: arenas mapped into this process, and a pool of threads for its passes.

#include "device/collective/lane_collectives.hpp"
#include "device/host/host_node_passes.hpp"
#include "device/host/host_passes.hpp"
#include "device/queue/lane_device.hpp"

#include <memory>
#include <optional>

namespace gradsync::device {

class HostDevice final : public LaneDevice {
 public:
  /// `threads` ≥ 1: that may be busy, the lane's own included. `nccl`: a library with its interface that adds up memory
  /// of the CPU.
  HostDevice(int threads, const std::atomic<bool>& cancel, std::optional<NcclOptions> nccl = {});

  /// With collectives of somebody else; null: none.
  HostDevice(int threads, const std::atomic<bool>& cancel, std::unique_ptr<LaneCollectives> collectives);

  [[nodiscard]] std::string thread_name() const override { return "lane:host"; }

  [[nodiscard]] std::unique_ptr<LaneBuffer> map(UniqueFd fd, std::uint64_t size_bytes) override;

  [[nodiscard]] const StepPasses& passes() const override { return passes_; }

  [[nodiscard]] WorkerPool* transfer_pool() override { return &pool_; }

  [[nodiscard]] NodePasses& node_passes() override { return node_passes_; }

  [[nodiscard]] LaneCollectives* collectives() override { return collectives_.get(); }

  [[nodiscard]] int threads() const override { return pool_.threads(); }

  void set_width(bool wide) override;

  void set_between(std::function<void()> between) override { pool_.set_between(std::move(between)); }

  void give_way(bool now) override { pool_.give_way(now); }

 private:
  WorkerPool pool_;
  HostPasses passes_;
  HostNodePasses node_passes_;
  std::unique_ptr<LaneCollectives> collectives_;
};

}  // namespace gradsync::device
