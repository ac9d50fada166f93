#include "engine/report/history.hpp"

#include <algorithm>
#include <utility>

namespace gradsync::engine {

namespace {

/// About; the parts that come in numbers, without the names of layers.
std::size_t memory_of(const StepReport& report) {
  std::size_t bytes = sizeof(StepReport) + report.reason.size() + sizeof(std::uint32_t) * report.stable_buckets.size();
  for (const GroupReport& group : report.groups) {
    bytes += sizeof(GroupReport) + group.name.size() + group.reason.size();
    for (const WatchReport& watcher : group.watch) {
      bytes += sizeof(WatchReport) + watcher.policy.size() + watcher.reason.size();
    }
  }
  for (const NonfiniteReport& found : report.nonfinite) {
    bytes += sizeof(NonfiniteReport) + found.tensor.size() + sizeof(NonfiniteInput) * found.inputs.size();
  }
  for (const DivergenceReport& found : report.divergence) {
    const std::size_t ranks = found.ranks.size() + found.majority.size() + found.suspects.size();
    bytes += sizeof(DivergenceReport) + found.tensor.size() + sizeof(std::int64_t) * ranks;
  }
  for (const MissingReport& found : report.missing) {
    bytes += sizeof(MissingReport) + found.tensor.size() + sizeof(std::int64_t) * found.ranks.size();
  }
  for (const std::string& name : report.absent_names) {
    bytes += sizeof(std::string) + name.size();
  }
  return bytes + sizeof(std::uint32_t) * report.absent.size() + sizeof(LayerReport) * report.layers.size();
}

/// The names of its layers, of which all reports of a plan are copies.
std::size_t names_of(const StepReport& report) {
  std::size_t bytes = 0;
  for (const LayerReport& layer : report.layers) {
    bytes += sizeof(std::string) + layer.name.str().size();
  }
  return bytes;
}

bool share_names(const StepReport& a, const StepReport& b) {
  return !a.layers.empty() && !b.layers.empty() && a.layers.front().name.shares(b.layers.front().name);
}

}  // namespace

History::History(std::int64_t capacity, FairBudget& memory, const Holder& holder)
    : capacity_(static_cast<std::size_t>(capacity)), memory_(memory), holder_(holder) {}

History::~History() { memory_.take(holder_, bytes_); }

std::shared_ptr<StepReport> History::next() {
  return spare_ ? std::exchange(spare_, nullptr) : std::make_shared<StepReport>();
}

void History::forget_oldest() {
  const Kept oldest = std::move(reports_.front());
  reports_.pop_front();
  bytes_ -= oldest.bytes;
  memory_.take(holder_, oldest.bytes);
  if (oldest.report.use_count() == 1) {
    spare_ = oldest.report;
  }
}

void History::committed(std::shared_ptr<StepReport> report, TimePoint now) {
  last_step_ = report->step;
  last_commit_ = now;
  ++steps_committed_;
  std::size_t bytes = memory_of(*report);
  if (reports_.empty() || !share_names(*reports_.back().report, *report)) {
    bytes += names_of(*report);
  }
  while (!reports_.empty() &&
         (reports_.size() >= capacity_ || bytes_ + bytes > kMostBytes || memory_.refuse(holder_, bytes))) {
    forget_oldest();
  }
  bytes_ += bytes;
  memory_.add(holder_, bytes);
  reports_.push_back({std::move(report), bytes});
}

std::vector<std::shared_ptr<const StepReport>> History::last(std::int64_t count) const {
  const auto shown = std::min(static_cast<std::size_t>(std::max<std::int64_t>(count, 0)), reports_.size());
  std::vector<std::shared_ptr<const StepReport>> reports;
  for (auto it = reports_.end() - static_cast<std::ptrdiff_t>(shown); it != reports_.end(); ++it) {
    reports.push_back(it->report);
  }
  return reports;
}

}  // namespace gradsync::engine
