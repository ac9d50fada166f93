#pragma once
// The plans over nodes of which reductions are under way, and what has to wait for them.

#include "device/queue/command_attempt.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

namespace gradsync::device {

class UnderWay {
 public:
  [[nodiscard]] bool empty() const { return plans_.empty(); }

  /// `oldest`: the attempt of the first reduction that is; `buffers` are not released meanwhile.
  void note(PlanId plan, Tag oldest, const std::vector<BufferId>& buffers) {
    const auto [entry, added] = plans_.try_emplace(plan);
    entry->second.tag = oldest;
    if (added) {
      entry->second.buffers = buffers;
    }
  }

  void forget(PlanId plan) { plans_.erase(plan); }

  [[nodiscard]] std::vector<PlanId> plans() const {
    std::vector<PlanId> plans;
    for (const auto& [plan, each] : plans_) {
      plans.push_back(plan);
    }
    return plans;
  }

  [[nodiscard]] std::optional<Tag> tag_of(PlanId plan) const {
    const auto found = plans_.find(plan);
    return found == plans_.end() ? std::nullopt : std::optional(found->second.tag);
  }

  /// Further reductions of a plan are begun, and an Abort ends them; all else that is about it waits, and so does the
  /// release of memory that they work on.
  [[nodiscard]] bool holds_up(const LaneCommand& command) const {
    if (const auto* unmap = std::get_if<UnmapBuffer>(&command)) {
      return std::any_of(plans_.begin(), plans_.end(), [&](const auto& each) {
        return std::find(each.second.buffers.begin(), each.second.buffers.end(), unmap->buffer) !=
               each.second.buffers.end();
      });
    }
    const std::optional<PlanId> plan = plan_of(command);
    return plan && plans_.contains(*plan) && !std::holds_alternative<ReduceBucket>(command) &&
           !std::holds_alternative<Abort>(command);
  }

 private:
  struct Plan {
    Tag tag = 0;
    std::vector<BufferId> buffers;
  };

  std::map<PlanId, Plan> plans_;
};

}  // namespace gradsync::device
