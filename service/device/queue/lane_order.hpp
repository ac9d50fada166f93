#pragma once
// Which command of a lane is executed next, or which plan goes on. It executes nothing, reads no clock and calls
// nobody. An attempt once aborted stays aborted until its plan is forgotten, also for commands that are added later.
//
// Not for several threads at once: whoever has it guards it.

#include "device/queue/command_attempt.hpp"
#include "device/queue/under_way.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

namespace gradsync::device {

class LaneOrder {
 public:
  /// What the lane's thread does next: one of them.
  struct Next {
    std::optional<LaneCommand> command;
    std::optional<PlanId> plan;  ///< it goes on
  };

  void add(LaneCommand command);

  /// The plan can go on: messages came.
  void go_on(PlanId plan);

  /// The same, if reductions of it are under way.
  void go_on_if_under_way(PlanId plan);

  void note_under_way(PlanId plan, Tag oldest, const std::vector<BufferId>& buffers) {
    under_way_.note(plan, oldest, buffers);
  }

  void note_not_under_way(PlanId plan) { under_way_.forget(plan); }

  /// What is under way ends: none of it can go on. Its plans.
  [[nodiscard]] std::vector<PlanId> give_up();

  /// How long a pass over a plan takes, as `LaneExecutor::work_of`.
  void note_work(PlanId plan, std::uint64_t work) { work_[plan] = work; }

  /// It is not loaded any more.
  void forget(PlanId plan);

  [[nodiscard]] bool can_work() { return !ready_.empty() || first_possible() != commands_.end(); }

  [[nodiscard]] bool anything_under_way() const { return !under_way_.empty(); }

  /// Commands and plans that can go on take turns. There is one. It runs until `end`.
  [[nodiscard]] Next take_turn();

  /// One for which the running command gives way; it runs before that goes on. Nothing: that goes on now.
  [[nodiscard]] std::optional<Next> take_shorter();

  /// The plan of what runs, of the last one that was taken.
  [[nodiscard]] std::optional<PlanId> running_plan() const { return running_.back().plan; }

  void end();

  /// The attempt of what runs is aborted.
  [[nodiscard]] bool cancels() const;

  /// What runs is to give way.
  [[nodiscard]] bool gives_way() const { return gives_way_; }

 private:
  using Commands = std::deque<LaneCommand>;
  using Plans = std::deque<PlanId>;

  /// A command that is being executed. Those above it in the stack were begun while it gave way.
  struct Running {
    std::optional<PlanId> plan;
    std::optional<Attempt> attempt;
    std::uint64_t work = 0;
  };

  void add_abort(LaneCommand command);
  void follow_queue();
  [[nodiscard]] LaneCommand begin(Commands::iterator at);
  [[nodiscard]] PlanId begin(Plans::iterator at);
  [[nodiscard]] Commands::iterator first_possible();
  [[nodiscard]] Commands::iterator first_shorter();
  [[nodiscard]] Commands::iterator place_of(const Abort& abort);
  [[nodiscard]] Plans::iterator shorter_plan();
  [[nodiscard]] bool is_parked(const LaneCommand& command) const;
  [[nodiscard]] bool is_running(PlanId plan) const;
  [[nodiscard]] bool is_shorter(const LaneCommand& command) const;
  [[nodiscard]] bool is_behind(PlanId plan) const;
  [[nodiscard]] bool is_aborted(const Attempt& attempt) const;
  [[nodiscard]] std::uint64_t work_of(const LaneCommand& command) const;

  Commands commands_;
  std::map<PlanId, std::size_t> waiting_;  ///< commands of each plan in the queue
  bool gives_way_ = false;                 ///< the running command gives way for one of them
  std::map<PlanId, Tag> aborted_;          ///< the highest aborted attempt of each plan
  std::map<PlanId, std::uint64_t> work_;   ///< of each plan that is loaded
  std::vector<Running> running_;           ///< a stack: the last one has the device
  std::vector<PlanId> behind_;             ///< memory of a search
  UnderWay under_way_;                     ///< reductions that are
  Plans ready_;                            ///< those that can go on, each once, in turn
  bool plans_turn_ = false;                ///< a plan went on last, and not a command
};

}  // namespace gradsync::device
