#include "engine/report/history.hpp"

#include <algorithm>
#include <utility>

namespace gradsync::engine {

namespace {

/// About; the parts that come in numbers.
std::size_t memory_of(const StepReport& report) {
  std::size_t bytes = sizeof(StepReport) + report.reason.size() + sizeof(std::uint32_t) * report.stable_buckets.size();
  for (const GroupReport& group : report.groups) {
    bytes += sizeof(GroupReport) + group.name.size() + group.reason.size();
    for (const WatchReport& watcher : group.watch) {
      bytes += sizeof(WatchReport) + watcher.policy.size() + watcher.reason.size();
    }
  }
  for (const LayerReport& layer : report.layers) {
    bytes += sizeof(LayerReport) + layer.name.size();
  }
  return bytes;
}

}  // namespace

void History::make_room(const StepReport& like) {
  const std::size_t kept = reports_.capacity() + 1;  // and the one being written
  const std::size_t made = std::min(kept - reports_.size(), kRoomBytes / memory_of(like));
  spare_.reserve(made);
  while (spare_.size() < made) {
    spare_.push_back(std::make_shared<StepReport>(like));
  }
}

std::shared_ptr<StepReport> History::next() {
  if (spare_.empty()) {
    return std::make_shared<StepReport>();
  }
  std::shared_ptr<StepReport> report = std::move(spare_.back());
  spare_.pop_back();
  return report;
}

void History::committed(std::shared_ptr<StepReport> report, TimePoint now) {
  last_step_ = report->step;
  last_commit_ = now;
  ++steps_committed_;
  if (reports_.full()) {
    std::shared_ptr<StepReport> oldest = std::move(reports_.front());
    reports_.pop_front();
    if (oldest.use_count() == 1) {
      spare_.push_back(std::move(oldest));
    }
  }
  reports_.push_back(std::move(report));
}

std::vector<StepReport> History::last(std::int64_t count) const {
  const auto shown = std::min(static_cast<std::size_t>(std::max<std::int64_t>(count, 0)), reports_.size());
  std::vector<StepReport> reports;
  for (auto it = reports_.end() - static_cast<std::ptrdiff_t>(shown); it != reports_.end(); ++it) {
    reports.push_back(**it);
  }
  return reports;
}

}  // namespace gradsync::engine
