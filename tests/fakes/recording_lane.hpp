#pragma once
// A lane that keeps its commands and answers them when told, one report each as the interface promises. The result of a
// FinishStep is what the test put into `math`, and what the rules make of `raw_norms`; of a raw one, sums of that norm.

#include "device/about.hpp"
#include "device/lane.hpp"

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace gradsync::fakes {

class RecordingLane : public device::Lane {
 public:
  void submit(device::LaneCommand command) override {
    if (std::holds_alternative<device::SetWidth>(command)) {
      wide = std::get<device::SetWidth>(command).wide;
      return;
    }
    if (const auto* abort = std::get_if<device::Abort>(&command)) {
      aborted.push_back(*abort);
    }
    commands.push_back(std::move(command));
    was_wide.push_back(wide);
  }

  /// The answer to the oldest command.
  device::LaneReport answer_next() {
    device::LaneCommand command = std::move(commands.front());
    commands.pop_front();
    const bool refused = refuse_maps && (std::holds_alternative<device::MapBuffer>(command) ||
                                         std::holds_alternative<device::ProbeMemory>(command));
    if (lost || refused) {
      device::Failed failed = device::about(command);
      failed.message = lost ? "the worker of the lane (pid 7) ended by signal 9" : "scripted refusal";
      failed.hint = lost ? "" : "scripted hint";
      failed.lane_lost = lost;
      return failed;
    }
    return std::visit([this](auto& value) { return this->answer(value); }, command);
  }

  /// Answers everything, also what the answers cause.
  void answer_all(const std::function<void(device::LaneReport)>& sink) {
    while (!commands.empty()) {
      sink(answer_next());
    }
  }

  template <typename T>
  [[nodiscard]] std::size_t count() const {
    return static_cast<std::size_t>(std::count_if(commands.begin(), commands.end(), [](const auto& command) {
      return std::holds_alternative<T>(command);
    }));
  }

  std::deque<device::LaneCommand> commands;
  std::vector<device::Abort> aborted;
  device::StepMath math;
  std::vector<double> raw_norms;  ///< by clip group: with these the outcomes are made by the step's rules
  bool wide = false;
  std::vector<bool> was_wide;  ///< when a command came, by command
  bool fail_reductions = false;
  bool refuse_maps = false;
  bool lost = false;  ///< every command fails
  std::vector<device::BufferId> unmapped;
  std::vector<device::ReduceBucket> reduced;
  std::vector<device::FinishStep> finished;
  std::vector<device::MeasureBuckets> measured;
  std::vector<device::ScaleGradients> scaled;
  std::vector<device::TensorCell> cells;  ///< the sums of tensors, for a lane that shares a plan
  std::function<std::uint32_t(std::uint32_t)> bucket_of = [](std::uint32_t tensor) { return tensor; };

 private:
  [[nodiscard]] bool is_aborted(device::PlanId plan, device::Tag tag) const {
    return std::any_of(aborted.begin(), aborted.end(), [&](const auto& abort) {
      return abort.plan == plan && tag <= abort.tag;
    });
  }

  static device::LaneReport failed(device::PlanId plan, device::Tag tag, bool was_aborted) {
    device::Failed report;
    report.plan = plan;
    report.tag = tag;
    report.aborted = was_aborted;
    report.message = was_aborted ? "aborted" : "scripted failure";
    return report;
  }

  static device::LaneReport answer(device::MapBuffer& command) { return device::Mapped{command.buffer}; }

  /// The bytes count up from 0.
  static device::LaneReport answer(device::ProbeMemory& command) {
    device::Probe probe{command.exported.allocation_bytes, std::string(command.size_bytes, '\0'), 0.5, 0.25, 0.125};
    std::iota(probe.read.begin(), probe.read.end(), '\0');
    return device::Probed{command.buffer, std::move(probe)};
  }

  device::LaneReport answer(device::UnmapBuffer& command) {
    unmapped.push_back(command.buffer);
    return device::Unmapped{command.buffer};
  }

  static device::LaneReport answer(device::LoadPlan& command) { return device::Loaded{command.plan}; }

  static device::LaneReport answer(device::LoadStats& command) { return device::Loaded{command.plan}; }

  static device::LaneReport answer(device::UnloadPlan& command) { return device::Unloaded{command.plan}; }

  device::LaneReport answer(device::ReduceBucket& command) {
    if (is_aborted(command.plan, command.tag)) {
      return failed(command.plan, command.tag, true);
    }
    if (fail_reductions) {
      return failed(command.plan, command.tag, false);
    }
    reduced.push_back(command);
    return device::Reduced{command.plan, command.tag, command.bucket, 0.001};
  }

  device::LaneReport answer(device::FinishStep& command) {
    if (is_aborted(command.plan, command.tag)) {
      return failed(command.plan, command.tag, true);
    }
    finished.push_back(command);
    if (command.raw) {
      return device::Finished{command.plan, command.tag, math, raw_step()};
    }
    device::StepMath result = math;
    for (std::size_t group = 0; group < raw_norms.size(); ++group) {
      result.groups.push_back(plan::apply_clip_rule(command.rules[group], raw_norms[group], command.scale));
      result.raw_group_norms.push_back(raw_norms[group]);
      result.nonfinite_total += std::isfinite(raw_norms[group]) ? 0 : 1;
    }
    plan::decide_together(result.groups);
    while (result.groups.size() < command.rules.size()) {
      result.groups.push_back(plan::ClipOutcome{});
    }
    for (std::size_t group = result.raw_group_norms.size(); group < result.groups.size(); ++group) {
      result.raw_group_norms.push_back(result.groups[group].norm);
    }
    return device::Finished{command.plan, command.tag, result};
  }

  /// There is one clip group, and the norm is that of type 2.
  [[nodiscard]] std::shared_ptr<const device::RawStep> raw_step() const {
    auto raw = std::make_shared<device::RawStep>();
    if (!raw_norms.empty()) {
      raw->cells.whole.power_sum = {raw_norms.front() * raw_norms.front(), 0};
      raw->cells.whole.maximum = raw_norms.front();
    }
    return raw;
  }

  device::LaneReport answer(device::MeasureBuckets& command) {
    if (is_aborted(command.plan, command.tag)) {
      return failed(command.plan, command.tag, true);
    }
    measured.push_back(command);
    device::Measured report{command.plan, command.tag, {}, {}};
    for (const device::TensorCell& cell : cells) {
      if (std::find(command.buckets.begin(), command.buckets.end(), bucket_of(cell.tensor)) != command.buckets.end()) {
        report.cells.push_back(cell);
      }
    }
    return report;
  }

  device::LaneReport answer(device::ScaleGradients& command) {
    scaled.push_back(command);
    return device::Scaled{command.plan, command.tag, 0.0};
  }

  /// A plan that it takes has no class of boxes and no row that is read.
  static device::LaneReport answer(device::ReadRows& command) {
    return device::RowsRead{command.plan, command.tag, {}, {}};
  }

  static device::LaneReport answer(device::ConnectNodes& command) { return device::Connected{command.plan}; }

  static device::LaneReport answer(device::Abort& command) { return device::Aborted{command.plan, command.tag}; }

  static device::LaneReport answer(device::SetWidth&) { return device::Aborted{}; }
};

}  // namespace gradsync::fakes
