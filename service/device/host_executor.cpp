#include "device/host_executor.hpp"

#include "base/clock.hpp"
#include "device/arena.hpp"
#include "device/bucket_reduction.hpp"
#include "device/device_error.hpp"
#include "device/step_finish.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

namespace gradsync::device {

LaneReport HostExecutor::operator()(MapBuffer& command) {
  if (buffers_.contains(command.buffer)) {
    throw DeviceError(fmt::format("buffer {} is already mapped", command.buffer));
  }
  buffers_.emplace(command.buffer, MappedBuffer(std::move(command.fd), command.size_bytes, pool_));
  return Mapped{command.buffer};
}

LaneReport HostExecutor::operator()(UnmapBuffer& command) {
  const auto found = buffers_.find(command.buffer);
  if (found == buffers_.end() && command.fd.valid()) {
    punch_out(command.fd.get(), command.size_bytes);
    return Unmapped{command.buffer};
  }
  if (found == buffers_.end()) {
    throw DeviceError(fmt::format("buffer {} is not mapped", command.buffer));
  }
  for (auto& [id, plan] : plans_) {
    const auto& used = plan.layout().rank_buffers;
    if (std::find(used.begin(), used.end(), command.buffer) != used.end()) {
      plan.lost_buffer = command.buffer;
    }
  }
  found->second.punch_out();
  buffers_.erase(found);
  return Unmapped{command.buffer};
}

LaneReport HostExecutor::operator()(LoadPlan& command) {
  if (plans_.contains(command.plan)) {
    throw DeviceError(fmt::format("plan {} is already loaded", command.plan));
  }
  std::vector<BufferView> views;
  for (const BufferId buffer : command.layout.rank_buffers) {
    const auto found = buffers_.find(buffer);
    if (found == buffers_.end()) {
      throw DeviceError(fmt::format("buffer {} of rank {} is not mapped", buffer, views.size()));
    }
    views.push_back({found->second.data(), found->second.size_bytes()});
  }
  plans_.try_emplace(
      command.plan, std::move(command.layout), std::move(views), static_cast<std::size_t>(pool_.threads())
  );
  return Loaded{command.plan};
}

LaneReport HostExecutor::operator()(UnloadPlan& command) {
  if (plans_.erase(command.plan) == 0) {
    throw DeviceError(fmt::format("plan {} is not loaded", command.plan));
  }
  return Unloaded{command.plan};
}

LaneReport HostExecutor::operator()(ReduceBucket& command) {
  LoadedPlan& plan = usable_plan(command.plan);
  throw_if_cancelled();
  const auto start = std::chrono::steady_clock::now();
  reduce_bucket(plan, command, pool_, cancel_);
  return Reduced{command.plan, command.tag, command.bucket, seconds(std::chrono::steady_clock::now() - start)};
}

LaneReport HostExecutor::operator()(FinishStep& command) {
  LoadedPlan& plan = usable_plan(command.plan);
  throw_if_cancelled();
  return Finished{command.plan, command.tag, finish_step(plan, command, pool_, cancel_)};
}

LaneReport HostExecutor::operator()(ScaleGradients& command) {
  LoadedPlan& plan = usable_plan(command.plan);
  throw_if_cancelled();
  return Scaled{command.plan, command.tag, scale_gradients(plan, command, pool_, cancel_)};
}

LoadedPlan& HostExecutor::usable_plan(PlanId plan) {
  const auto found = plans_.find(plan);
  if (found == plans_.end()) {
    throw DeviceError(fmt::format("plan {} is not loaded", plan));
  }
  if (found->second.lost_buffer) {
    throw DeviceError(fmt::format("buffer {} of plan {} was unmapped", *found->second.lost_buffer, plan));
  }
  return found->second;
}

void HostExecutor::throw_if_cancelled() const {
  if (cancel_.load(std::memory_order_relaxed)) {
    throw DeviceError("aborted", DeviceError::Kind::Aborted);
  }
}

}  // namespace gradsync::device
