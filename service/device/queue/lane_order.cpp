#include "device/queue/lane_order.hpp"

#include <algorithm>
#include <utility>

namespace gradsync::device {

namespace {

/// A step of a plan waits for a command of another only where that is not much longer than its own: the running one
/// gives way, between two tasks, to what has at most this part of its work.
constexpr std::uint64_t kShorter = 4;
constexpr std::uint64_t kWorkAtOnce = 4U << 20;  ///< of a plan that goes on, as `LaneExecutor::work_of`

bool loads(const LaneCommand& command, PlanId plan) {
  const auto* load = std::get_if<LoadPlan>(&command);
  const auto* load_stats = std::get_if<LoadStats>(&command);
  return (load != nullptr && load->plan == plan) || (load_stats != nullptr && load_stats->plan == plan);
}

}  // namespace

/// The running command gives way for none of those before it, or does so already: only this one is looked at, however
/// many wait.
void LaneOrder::add(LaneCommand command) {
  if (std::holds_alternative<Abort>(command)) {
    add_abort(std::move(command));
    return;
  }
  const std::optional<PlanId> plan = plan_of(command);
  const bool first = plan && waiting_[*plan]++ == 0;
  gives_way_ =
      gives_way_ || (first && !running_.empty() && !is_running(*plan) && is_shorter(command) && !is_parked(command));
  commands_.push_back(std::move(command));
}

void LaneOrder::add_abort(LaneCommand command) {
  const Abort abort = std::get<Abort>(command);
  const auto [entry, added] = aborted_.try_emplace(abort.plan, abort.tag);
  entry->second = std::max(entry->second, abort.tag);
  const auto place = place_of(abort);
  ++waiting_[abort.plan];
  commands_.insert(place, std::move(command));
  follow_queue();
}

/// Moves the commands that the Abort ends to the front, because they take no time any more, and returns the place
/// behind them: commands of other plans may take seconds, and the sender of the Abort waits. A plan that is yet to be
/// loaded keeps its order.
LaneOrder::Commands::iterator LaneOrder::place_of(const Abort& abort) {
  if (std::ranges::any_of(commands_, [&](const LaneCommand& command) { return loads(command, abort.plan); })) {
    return commands_.end();
  }
  return std::stable_partition(commands_.begin(), commands_.end(), [&](const LaneCommand& command) {
    const auto* earlier = std::get_if<Abort>(&command);
    const std::optional<Attempt> attempt = attempt_of(command);
    return (earlier != nullptr && earlier->plan == abort.plan) ||
           (attempt && attempt->plan == abort.plan && is_aborted(*attempt));
  });
}

void LaneOrder::go_on(PlanId plan) {
  if (std::ranges::find(ready_, plan) == ready_.end()) {
    ready_.push_back(plan);
  }
  gives_way_ = gives_way_ || shorter_plan() != ready_.end();
}

void LaneOrder::go_on_if_under_way(PlanId plan) {
  if (under_way_.tag_of(plan)) {
    go_on(plan);
  }
}

std::vector<PlanId> LaneOrder::give_up() {
  ready_.clear();
  return under_way_.plans();
}

void LaneOrder::forget(PlanId plan) {
  aborted_.erase(plan);
  work_.erase(plan);
}

LaneOrder::Next LaneOrder::take_turn() {
  const auto command = first_possible();
  plans_turn_ = !ready_.empty() && (command == commands_.end() || !plans_turn_);
  return plans_turn_ ? Next{std::nullopt, begin(ready_.begin())} : Next{begin(command), std::nullopt};
}

std::optional<LaneOrder::Next> LaneOrder::take_shorter() {
  if (const auto shorter = first_shorter(); shorter != commands_.end()) {
    return Next{begin(shorter), std::nullopt};
  }
  if (const auto plan = shorter_plan(); plan != ready_.end()) {
    return Next{std::nullopt, begin(plan)};
  }
  gives_way_ = false;
  return std::nullopt;
}

/// Takes a command out of the queue, to be executed.
LaneCommand LaneOrder::begin(Commands::iterator at) {
  LaneCommand command = std::move(*at);
  commands_.erase(at);
  const auto waiting = waiting_.find(plan_of(command).value_or(0));
  if (waiting != waiting_.end() && --waiting->second == 0) {
    waiting_.erase(waiting);
  }
  running_.push_back({plan_of(command), attempt_of(command), work_of(command)});
  follow_queue();
  return command;
}

/// A plan takes its turn.
PlanId LaneOrder::begin(Plans::iterator at) {
  const PlanId plan = *at;
  ready_.erase(at);
  const std::optional<Tag> tag = under_way_.tag_of(plan);
  const auto attempt = tag ? std::optional(Attempt{plan, *tag}) : std::nullopt;
  running_.push_back({plan, attempt, kWorkAtOnce});
  follow_queue();
  return plan;
}

void LaneOrder::end() {
  running_.pop_back();
  follow_queue();
}

bool LaneOrder::cancels() const {
  return !running_.empty() && running_.back().attempt && is_aborted(*running_.back().attempt);
}

/// Called when the queue or the stack changed.
void LaneOrder::follow_queue() { gives_way_ = first_shorter() != commands_.end() || shorter_plan() != ready_.end(); }

/// The first plan that can go on for which the running command gives way: what it does at a time is short.
LaneOrder::Plans::iterator LaneOrder::shorter_plan() {
  return running_.empty() ? ready_.end() : std::ranges::find_if(ready_, [this](PlanId plan) {
    return !is_running(plan) && kWorkAtOnce <= running_.back().work / kShorter;
  });
}

/// Whether a command has to wait until reductions that are under way are done. Those of an aborted attempt do not.
bool LaneOrder::is_parked(const LaneCommand& command) const {
  if (under_way_.empty() || !under_way_.holds_up(command)) {
    return false;
  }
  const std::optional<Attempt> attempt = attempt_of(command);
  return !(attempt && is_aborted(*attempt));
}

/// The first command that can be executed now. The commands of a plan stay in order.
LaneOrder::Commands::iterator LaneOrder::first_possible() {
  if (under_way_.empty()) {
    return commands_.begin();
  }
  behind_.clear();
  for (auto at = commands_.begin(); at != commands_.end(); ++at) {
    const std::optional<PlanId> plan = plan_of(*at);
    if (plan && is_behind(*plan)) {
      continue;
    }
    if (!is_parked(*at)) {
      return at;
    }
    if (plan) {
      behind_.push_back(*plan);
    }
  }
  return commands_.end();
}

/// The first command for which the running one gives way. The commands of a plan stay in order, and nothing of a plan
/// that is being executed is begun.
LaneOrder::Commands::iterator LaneOrder::first_shorter() {
  if (running_.empty()) {
    return commands_.end();
  }
  behind_.clear();
  for (const Running& running : running_) {
    if (running.plan) {
      behind_.push_back(*running.plan);
    }
  }
  for (auto at = commands_.begin(); at != commands_.end(); ++at) {
    const std::optional<PlanId> plan = plan_of(*at);
    if (!plan || is_behind(*plan)) {
      continue;
    }
    if (is_shorter(*at) && !is_parked(*at)) {
      return at;
    }
    behind_.push_back(*plan);
  }
  return commands_.end();
}

bool LaneOrder::is_running(PlanId plan) const {
  return std::ranges::any_of(running_, [plan](const Running& other) { return other.plan == plan; });
}

bool LaneOrder::is_shorter(const LaneCommand& command) const {
  return std::holds_alternative<Abort>(command) ||
         (attempt_of(command) && work_of(command) <= running_.back().work / kShorter);
}

bool LaneOrder::is_behind(PlanId plan) const { return std::ranges::find(behind_, plan) != behind_.end(); }

bool LaneOrder::is_aborted(const Attempt& attempt) const {
  const auto found = aborted_.find(attempt.plan);
  return found != aborted_.end() && attempt.tag <= found->second;
}

std::uint64_t LaneOrder::work_of(const LaneCommand& command) const {
  if (const auto* map = std::get_if<MapBuffer>(&command)) {
    return map->exported ? 0 : map->size_bytes;  // no page of it is touched
  }
  const std::optional<PlanId> plan = plan_of(command);
  const auto found = plan ? work_.find(*plan) : work_.end();
  return found == work_.end() ? 0 : found->second;
}

}  // namespace gradsync::device
