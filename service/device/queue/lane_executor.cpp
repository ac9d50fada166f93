#include "device/queue/lane_executor.hpp"

#include "base/clock.hpp"
#include "device/collective/collective_run.hpp"
#include "device/device_error.hpp"
#include "device/memory/arena.hpp"
#include "device/step/bucket_step.hpp"
#include "device/step/node_rows.hpp"
#include "device/step/stats_finish.hpp"
#include "device/step/step_finish.hpp"
#include "device/transfer/node_finish.hpp"
#include "device/transfer/transfer_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

namespace gradsync::device {

namespace {

void throw_if_lost(const std::optional<BufferId>& buffer, PlanId plan) {
  if (buffer) {
    throw DeviceError(fmt::format("buffer {} of plan {} was unmapped", *buffer, plan));
  }
}

}  // namespace

LaneExecutor::~LaneExecutor() {
  for (const auto& [id, plan] : plans_) {
    device_.unload(plan);
  }
}

LaneReport LaneExecutor::operator()(MapBuffer& command) {
  if (buffers_.contains(command.buffer)) {
    throw DeviceError(fmt::format("buffer {} is already mapped", command.buffer));
  }
  buffers_.emplace(
      command.buffer,
      command.exported ? device_.map_exported(*command.exported, command.size_bytes)
                       : device_.map(std::move(command.fd), command.size_bytes)
  );
  return Mapped{command.buffer};
}

LaneReport LaneExecutor::operator()(UnmapBuffer& command) {
  const auto found = buffers_.find(command.buffer);
  if (found == buffers_.end() && command.fd.valid()) {
    punch_out(command.fd.get(), command.size_bytes);
    return Unmapped{command.buffer};
  }
  if (found == buffers_.end()) {
    throw DeviceError(fmt::format("buffer {} is not mapped", command.buffer));
  }
  const auto mark_lost = [&](auto& plans) {
    for (auto& [id, plan] : plans) {
      const auto& used = plan.layout().rank_buffers;
      if (std::find(used.begin(), used.end(), command.buffer) != used.end()) {
        plan.lose(command.buffer);
      }
    }
  };
  mark_lost(plans_);
  mark_lost(stats_plans_);
  found->second->punch_out();
  buffers_.erase(found);
  return Unmapped{command.buffer};
}

LaneReport LaneExecutor::operator()(ProbeMemory& command) {
  return Probed{command.buffer, device_.probe(command.exported, command.size_bytes)};
}

LaneReport LaneExecutor::operator()(LoadPlan& command) {
  throw_if_loaded(command.plan);
  const bool over_nodes = !command.layout.nodes.node_of_rank.empty();
  if (over_nodes) {
    check_travels(command);
  }
  std::vector<BufferView> views;
  for (const BufferId buffer : command.layout.rank_buffers) {
    views.push_back(over_nodes && buffer == 0 ? BufferView() : buffer_of(views.size(), buffer).for_passes());
  }
  const auto threads = static_cast<std::size_t>(device_.threads());
  const auto loading = plans_.try_emplace(command.plan, std::move(command.layout), views, threads).first;
  Loaded loaded{command.plan};
  try {
    device_.load(loading->second);
    if (over_nodes) {
      runs_.emplace(command.plan, make_run(command.plan, loading->second, loaded));
    }
  } catch (...) {
    device_.unload(loading->second);
    plans_.erase(loading);
    throw;
  }
  return loaded;
}

/// Whether this lane has what the sums of the plan travel by. Throws DeviceError.
void LaneExecutor::check_travels(const LoadPlan& command) const {
  if (command.layout.nodes.communicators && device_.collectives() == nullptr) {
    throw DeviceError(
        fmt::format("the sums of plan {} travel by NCCL, which this lane does not have", command.plan),
        "start its worker with --nccl"
    );
  }
  if (!command.layout.nodes.communicators && device_.transfer_pool() == nullptr) {
    throw DeviceError(
        "this lane exchanges no gradients with other nodes over connections",
        "gradients on GPUs of several nodes travel by NCCL, those in memory of CPUs over connections"
    );
  }
}

std::unique_ptr<NodeRun> LaneExecutor::make_run(PlanId id, LoadedPlan& plan, Loaded& loaded) {
  if (!plan.layout().nodes.communicators) {
    return std::make_unique<TransferRun>(
        plan, *device_.transfer_pool(), device_.passes(), cancel_, make_wire_, [this, id] { wake_(id); }
    );
  }
  auto run = std::make_unique<CollectiveRun>(
      id, plan, *device_.collectives(), device_.node_passes(), device_.passes(), cancel_
  );
  loaded.communicators = run->loaded();
  return run;
}

LaneReport LaneExecutor::operator()(LoadStats& command) {
  throw_if_loaded(command.plan);
  std::vector<BufferView> views;
  for (const BufferId buffer : command.layout.rank_buffers) {
    if (buffer == 0) {
      views.emplace_back();  // of a rank on another node
      continue;
    }
    views.push_back(buffer_of(views.size(), buffer).for_host());
    if (views.back().data == nullptr) {
      throw DeviceError(
          fmt::format("buffer {} of rank {} lies on a GPU", buffer, views.size() - 1),
          "a table of statistics lies in memory of the CPU: buffers.allocate gives it"
      );
    }
  }
  stats_plans_.try_emplace(command.plan, std::move(command.layout), views);
  return Loaded{command.plan};
}

std::optional<LaneReport> LaneExecutor::operator()(ConnectNodes& command) {
  static_cast<void>(usable_plan(command.plan));
  const auto run = runs_.find(command.plan);
  if (run == runs_.end()) {
    throw DeviceError(fmt::format("all ranks of plan {} are here: it has no connections", command.plan));
  }
  return run->second->connect(command);
}

LaneReport LaneExecutor::operator()(UnloadPlan& command) {
  if (const auto found = plans_.find(command.plan); found != plans_.end()) {
    runs_.erase(command.plan);
    device_.unload(found->second);
    plans_.erase(found);
  } else if (stats_plans_.erase(command.plan) == 0) {
    throw DeviceError(fmt::format("plan {} is not loaded", command.plan));
  }
  return Unloaded{command.plan};
}

std::optional<LaneReport> LaneExecutor::operator()(ReduceBucket& command) {
  LoadedPlan& plan = usable_plan(command.plan);
  if (const auto run = runs_.find(command.plan); run != runs_.end()) {
    run->second->begin(command);
    return std::nullopt;
  }
  device_.passes().throw_if_cancelled();
  const auto start = std::chrono::steady_clock::now();
  reduce_bucket(plan, command, device_.passes());
  return Reduced{command.plan, command.tag, command.bucket, seconds(std::chrono::steady_clock::now() - start)};
}

LaneReport LaneExecutor::operator()(FinishStep& command) {
  if (LoadedStats* stats = usable_stats(command.plan)) {
    device_.passes().throw_if_cancelled();
    if (command.raw) {
      return finish_raw(*stats, command, cancel_);
    }
    return Finished{command.plan, command.tag, finish_stats(*stats, command, cancel_)};
  }
  LoadedPlan& plan = usable_plan(command.plan);
  device_.passes().throw_if_cancelled();
  if (plan.nodes() != nullptr) {
    return finish_node(plan, command);
  }
  return Finished{command.plan, command.tag, finish_step(plan, command, device_.passes())};
}

LaneReport LaneExecutor::operator()(MeasureBuckets& command) {
  LoadedPlan& plan = usable_plan(command.plan);
  device_.passes().throw_if_cancelled();
  if (plan.nodes() != nullptr) {
    throw DeviceError("a plan over several nodes is not measured by buckets: a raw finish says what this lane has");
  }
  return measure_buckets(plan, command, device_.passes());
}

LaneReport LaneExecutor::operator()(ScaleGradients& command) {
  if (LoadedStats* stats = usable_stats(command.plan)) {
    device_.passes().throw_if_cancelled();
    scale_stats(*stats, command);
    return Scaled{command.plan, command.tag, 0};
  }
  LoadedPlan& plan = usable_plan(command.plan);
  device_.passes().throw_if_cancelled();
  if (plan.nodes() != nullptr) {
    begin_scaling(plan, command);
    return Scaled{command.plan, command.tag, device_.node_passes().scale_outputs(plan, command)};
  }
  return Scaled{command.plan, command.tag, scale_gradients(plan, command, device_.passes())};
}

LaneReport LaneExecutor::operator()(ReadRows& command) {
  LoadedStats* const stats = usable_stats(command.plan);
  device_.passes().throw_if_cancelled();
  if (stats != nullptr) {
    return read_rows(*stats, command, cancel_);
  }
  const LoadedPlan& plan = usable_plan(command.plan);
  if (plan.nodes() == nullptr) {
    throw DeviceError(fmt::format("all ranks of plan {} are here: there is nothing to compare with", command.plan));
  }
  return device_.node_passes().read_copies(plan, command);
}

std::optional<LaneReport> LaneExecutor::operator()(Abort& command) {
  const auto run = runs_.find(command.plan);
  return run != runs_.end() ? run->second->abort(command) : Aborted{command.plan, command.tag};
}

bool LaneExecutor::advance(PlanId plan) {
  const auto run = runs_.find(plan);
  return run != runs_.end() && run->second->advance();
}

void LaneExecutor::give_up_transfers() {
  for (auto& [plan, run] : runs_) {
    run->give_up();
  }
}

std::optional<TimePoint> LaneExecutor::next_poll() const {
  const LaneCollectives* const collectives = device_.collectives();
  return collectives == nullptr ? std::nullopt : collectives->next_poll();
}

void LaneExecutor::poll(std::vector<PlanId>& changed) { device_.collectives()->poll(changed); }

std::optional<Tag> LaneExecutor::under_way(PlanId plan) const {
  const auto run = runs_.find(plan);
  return run != runs_.end() ? run->second->under_way() : std::nullopt;
}

const std::vector<BufferId>& LaneExecutor::buffers_of(PlanId plan) const {
  return plans_.at(plan).layout().rank_buffers;
}

void LaneExecutor::take_reports(std::vector<LaneReport>& reports) {
  for (auto& [plan, run] : runs_) {
    run->take_reports(reports);
  }
}

LoadedPlan& LaneExecutor::usable_plan(PlanId plan) {
  const auto found = plans_.find(plan);
  if (found == plans_.end()) {
    const bool stats = stats_plans_.contains(plan);
    throw DeviceError(
        fmt::format("plan {} {}", plan, stats ? "has no gradients here: its data path is stats" : "is not loaded")
    );
  }
  throw_if_lost(found->second.lost_buffer(), plan);
  return found->second;
}

LoadedStats* LaneExecutor::usable_stats(PlanId plan) {
  const auto found = stats_plans_.find(plan);
  if (found == stats_plans_.end()) {
    return nullptr;
  }
  throw_if_lost(found->second.lost_buffer(), plan);
  return &found->second;
}

const LaneBuffer& LaneExecutor::buffer_of(std::size_t rank, BufferId buffer) const {
  const auto found = buffers_.find(buffer);
  if (found == buffers_.end()) {
    throw DeviceError(fmt::format("buffer {} of rank {} is not mapped", buffer, rank));
  }
  return *found->second;
}

std::uint64_t LaneExecutor::bytes_of(const std::vector<BufferId>& rank_buffers) const {
  std::uint64_t bytes = 0;
  for (const BufferId buffer : rank_buffers) {
    const auto found = buffers_.find(buffer);
    bytes += found == buffers_.end() ? 0 : found->second->for_host().size_bytes;
  }
  return bytes;
}

std::uint64_t LaneExecutor::work_of(PlanId plan) const {
  constexpr std::uint64_t kPowerCost = 32;  // of a general exponent: each value takes a logarithm
  if (const auto found = plans_.find(plan); found != plans_.end()) {
    const double p = found->second.layout().norm_type;
    const bool general = p != 1 && p != 2 && !std::isinf(p);
    return bytes_of(found->second.layout().rank_buffers) * (general ? kPowerCost : 1);
  }
  const auto stats = stats_plans_.find(plan);
  return stats == stats_plans_.end() ? 0 : bytes_of(stats->second.layout().rank_buffers);
}

void LaneExecutor::throw_if_loaded(PlanId plan) const {
  if (loaded(plan)) {
    throw DeviceError(fmt::format("plan {} is already loaded", plan));
  }
}

}  // namespace gradsync::device
