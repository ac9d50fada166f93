#pragma once
// The passes of a step on the CPU: by the threads of a pool.

#include "device/host/worker_pool.hpp"
#include "device/step/step_passes.hpp"

#include <atomic>

namespace gradsync::device {

class HostPasses final : public StepPasses {
 public:
  HostPasses(WorkerPool& pool, const std::atomic<bool>& cancel) : pool_(pool), cancel_(cancel) {}

  void reduce(LoadedPlan& plan, const ReduceBucket& command) const override;
  void sum_again(LoadedPlan& plan) const override;
  [[nodiscard]] double multiply(LoadedPlan& plan, const std::vector<plan::ClipOutcome>& outcomes, Copies copies)
      const override;
  [[nodiscard]] double write_deferred(LoadedPlan& plan) const override;
  void throw_if_cancelled() const override;

 private:
  WorkerPool& pool_;
  const std::atomic<bool>& cancel_;
};

}  // namespace gradsync::device
