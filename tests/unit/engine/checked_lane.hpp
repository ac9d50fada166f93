#pragma once
// A lane that keeps its commands like fakes::RecordingLane, fails some of them by chance, and holds the engine to what
// a lane may expect: launch order, one launch per bucket, memory mapped while a loaded plan uses it. Each breach is a
// line in `breaches`.

#include "device/lane.hpp"

#include <fmt/format.h>

#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace gradsync::engine {

class CheckedLane : public device::Lane {
 public:
  /// `chance(n)`: true once in n times.
  explicit CheckedLane(std::function<bool(int)> chance) : chance_(std::move(chance)) {}

  void submit(device::LaneCommand command) override {
    if (std::holds_alternative<device::SetWidth>(command)) {
      return;
    }
    std::visit([this](const auto& given) { note(given); }, command);
    commands.push_back(std::move(command));
  }

  device::LaneReport answer_next() {
    device::LaneCommand command = std::move(commands.front());
    commands.pop_front();
    return std::visit([this](const auto& given) { return answer(given); }, command);
  }

  /// Work of an attempt that has no report yet, in a plan that uses one of the buffers.
  [[nodiscard]] bool works_on(const std::set<device::BufferId>& buffers, device::Tag tag) const {
    for (const device::LaneCommand& command : commands) {
      const auto working = std::visit([](const auto& given) { return work_of(given); }, command);
      if (working.first == 0 || working.second != tag) {
        continue;
      }
      for (const device::BufferId buffer : buffers_of_.at(working.first)) {
        if (buffers.contains(buffer)) {
          return true;
        }
      }
    }
    return false;
  }

  [[nodiscard]] bool empty_handed() const { return commands.empty() && mapped_.empty() && loaded_.empty(); }

  std::deque<device::LaneCommand> commands;
  std::vector<std::string> breaches;
  bool fails = true;  ///< by chance

 private:
  using Work = std::pair<device::PlanId, device::Tag>;

  static Work work_of(const device::ReduceBucket& command) { return {command.plan, command.tag}; }

  static Work work_of(const device::FinishStep& command) { return {command.plan, command.tag}; }

  static Work work_of(const device::ScaleGradients& command) { return {command.plan, command.tag}; }

  template <typename Other>
  static Work work_of(const Other&) {
    return {};
  }

  template <typename... Args>
  void expect(bool held, fmt::format_string<Args...> text, Args&&... args) {
    if (!held) {
      breaches.push_back(fmt::format(text, std::forward<Args>(args)...));
    }
  }

  // ---- at submission

  template <typename Other>
  void note(const Other&) {}

  void note(const device::LoadPlan& command) {
    buffers_of_[command.plan] = command.layout.rank_buffers;
    buckets_of_[command.plan] = command.layout.buckets.size();
  }

  void note(const device::LoadStats& command) {
    buffers_of_[command.plan] = command.layout.rank_buffers;
    buckets_of_[command.plan] = 0;
  }

  void note(const device::Abort& command) { aborted_[command.plan] = command.tag; }

  void note(const device::ReduceBucket& command) {
    const std::size_t due = launched_[{command.plan, command.tag}]++;
    expect(
        command.bucket == due,
        "plan {} tag {}: bucket {} launched, due was {}",
        command.plan,
        command.tag,
        command.bucket,
        due
    );
    expect(!aborted(command.plan, command.tag), "plan {} tag {}: a bucket after the abort", command.plan, command.tag);
  }

  void note(const device::FinishStep& command) {
    const std::size_t launched = launched_[{command.plan, command.tag}];
    expect(
        launched == buckets_of_[command.plan],
        "plan {} tag {}: finished after {} buckets",
        command.plan,
        command.tag,
        launched
    );
    expect(
        finished_.insert({command.plan, command.tag}).second,
        "plan {} tag {}: finished twice",
        command.plan,
        command.tag
    );
  }

  void note(const device::ScaleGradients& command) {
    expect(
        finished_.contains({command.plan, command.tag}),
        "plan {} tag {}: scaled before finished",
        command.plan,
        command.tag
    );
    expect(
        scaled_.insert({command.plan, command.tag}).second, "plan {} tag {}: scaled twice", command.plan, command.tag
    );
  }

  // ---- when it is its turn

  device::LaneReport answer(const device::MapBuffer& command) {
    expect(!mapped_.contains(command.buffer), "buffer {} mapped twice", command.buffer);
    if (fails && chance_(40)) {
      map_failed_.insert(command.buffer);
      return failed(0, 0, command.buffer);
    }
    map_failed_.erase(command.buffer);
    mapped_.insert(command.buffer);
    return device::Mapped{command.buffer};
  }

  static device::LaneReport answer(const device::ProbeMemory& command) {
    return device::Probed{command.buffer, {command.exported.allocation_bytes, std::string(command.size_bytes, 'x')}};
  }

  device::LaneReport answer(const device::UnmapBuffer& command) {
    for (const device::PlanId plan : loaded_) {
      for (const device::BufferId used : buffers_of_.at(plan)) {
        expect(used != command.buffer, "buffer {} unmapped under plan {}", command.buffer, plan);
      }
    }
    if (mapped_.erase(command.buffer) == 0 && !command.fd.valid()) {
      expect(map_failed_.contains(command.buffer), "buffer {} unmapped without being mapped", command.buffer);
      return failed(0, 0, command.buffer);
    }
    return device::Unmapped{command.buffer};
  }

  device::LaneReport answer(const device::LoadPlan& command) { return answer_load(command); }

  device::LaneReport answer(const device::LoadStats& command) { return answer_load(command); }

  template <typename Load>
  device::LaneReport answer_load(const Load& command) {
    bool possible = !(fails && chance_(40));
    for (const device::BufferId buffer : command.layout.rank_buffers) {
      expect(
          mapped_.contains(buffer) || map_failed_.contains(buffer),
          "plan {} loaded without buffer {}",
          command.plan,
          buffer
      );
      possible = possible && mapped_.contains(buffer);
    }
    if (!possible) {
      load_failed_.insert(command.plan);
      return failed(command.plan, 0, 0);
    }
    loaded_.insert(command.plan);
    return device::Loaded{command.plan};
  }

  device::LaneReport answer(const device::UnloadPlan& command) {
    if (loaded_.erase(command.plan) == 0) {
      expect(load_failed_.contains(command.plan), "plan {} unloaded without being loaded", command.plan);
      return failed(command.plan, 0, 0);
    }
    return device::Unloaded{command.plan};
  }

  device::LaneReport answer(const device::ReduceBucket& command) {
    if (const auto refused = refuse(command)) {
      return *refused;
    }
    ++reduced_[{command.plan, command.tag}];
    return device::Reduced{command.plan, command.tag, command.bucket, 0.001};
  }

  device::LaneReport answer(const device::FinishStep& command) {
    if (const auto refused = refuse(command)) {
      return *refused;
    }
    if (reduced_[{command.plan, command.tag}] != buckets_of_[command.plan]) {
      return failed(command.plan, command.tag, 0);  // a bucket before it has failed
    }
    device::StepMath math;
    math.norm = static_cast<double>(command.tag + 1);
    math.groups.resize(command.rules.size());
    math.raw_group_norms.resize(command.rules.size());
    return device::Finished{command.plan, command.tag, math};
  }

  device::LaneReport answer(const device::MeasureBuckets& command) {
    if (const auto refused = refuse(command)) {
      return *refused;
    }
    return device::Measured{command.plan, command.tag, {}, {}};
  }

  device::LaneReport answer(const device::ScaleGradients& command) {
    if (const auto refused = refuse(command)) {
      return *refused;
    }
    return device::Scaled{command.plan, command.tag, 0.0};
  }

  device::LaneReport answer(const device::ReadRows& command) {
    expect(false, "plan {} tag {}: rows of a job with one node are read", command.plan, command.tag);
    return failed(command.plan, command.tag, 0);
  }

  device::LaneReport answer(const device::ConnectNodes& command) {
    expect(false, "plan {} of a job with one node is connected", command.plan);
    return failed(command.plan, 0, 0);
  }

  device::LaneReport answer(const device::Abort& command) { return device::Aborted{command.plan, command.tag}; }

  device::LaneReport answer(const device::SetWidth&) { return device::Aborted{}; }

  template <typename Command>
  std::optional<device::LaneReport> refuse(const Command& command) {
    expect(loaded_.contains(command.plan), "work for plan {}, which is not loaded", command.plan);
    for (const device::BufferId buffer : buffers_of_[command.plan]) {
      expect(mapped_.contains(buffer), "work on buffer {}, which is not mapped", buffer);
    }
    // What runs already may still come to its end.
    if (aborted(command.plan, command.tag) && !chance_(3)) {
      return failed(command.plan, command.tag, 0, true);
    }
    if (fails && chance_(60)) {
      return failed(command.plan, command.tag, 0);
    }
    return std::nullopt;
  }

  static device::LaneReport failed(
      device::PlanId plan, device::Tag tag, device::BufferId buffer, bool aborted = false
  ) {
    device::Failed report;
    report.plan = plan;
    report.tag = tag;
    report.buffer = buffer;
    report.aborted = aborted;
    report.message = aborted ? "aborted" : "by chance";
    return report;
  }

  [[nodiscard]] bool aborted(device::PlanId plan, device::Tag tag) const {
    const auto found = aborted_.find(plan);
    return found != aborted_.end() && tag <= found->second;
  }

  std::function<bool(int)> chance_;
  std::set<device::BufferId> mapped_;
  std::set<device::BufferId> map_failed_;
  std::set<device::PlanId> loaded_;
  std::set<device::PlanId> load_failed_;
  std::map<device::PlanId, std::vector<device::BufferId>> buffers_of_;
  std::map<device::PlanId, std::size_t> buckets_of_;
  std::map<device::PlanId, device::Tag> aborted_;
  std::map<Work, std::size_t> launched_;
  std::map<Work, std::size_t> reduced_;
  std::set<Work> finished_;
  std::set<Work> scaled_;
};

}  // namespace gradsync::engine
