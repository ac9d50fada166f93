#include "device/queue/lane_queue.hpp"

#include "base/older_runtime.hpp"
#include "base/thread_name.hpp"
#include "device/about.hpp"
#include "device/device_error.hpp"
#include "device/failure.hpp"
#include "device/queue/command_attempt.hpp"
#include "device/queue/lane_executor.hpp"
#include "device/queue/under_way.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace gradsync::device {

class LaneQueue::Thread {
 public:
  Thread(const MakeDevice& make_device, LaneSink sink, MakeWire make_wire, LaneThread thread)
      : sink_(std::move(sink)),
        device_(make_device(cancel_)),
        executor_(*device_, cancel_, std::move(make_wire), [this](PlanId plan) { wake(plan); }) {
    device_->set_between([this] { execute_shorter(); });
    if (thread == LaneThread::Own) {
      thread_ = std::thread([this] { run(); });
    }
  }

  ~Thread() {
    if (!thread_.joinable()) {
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

  void submit(LaneCommand command) {
    if (const auto* width = std::get_if<SetWidth>(&command)) {
      device_->set_width(width->wide);
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      if (const auto* abort = std::get_if<Abort>(&command)) {
        note_abort(*abort);
        const auto place = place_of(*abort);
        ++waiting_[abort->plan];
        commands_.insert(place, std::move(command));
        follow_queue();
      } else {
        push(std::move(command));
      }
    }
    wake_.notify_one();
  }

  void wait_until_idle() {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [this] { return sleeps_ && !can_work(); });
  }

  [[nodiscard]] bool has_work() {
    const std::lock_guard lock(mutex_);
    return can_work();
  }

  void work() {
    Next next;
    {
      const std::lock_guard lock(mutex_);
      next = take_turn();
    }
    work_on(next);
  }

  [[nodiscard]] bool has_collectives() const { return executor_.next_poll().has_value(); }

  void poll() {
    std::vector<PlanId> changed;
    executor_.poll(changed);
    std::vector<LaneReport> reports;
    executor_.take_reports(reports);
    {
      const std::lock_guard lock(mutex_);
      for (const PlanId plan : changed) {
        follow_transfers(plan);
        if (under_way_.tag_of(plan)) {
          note_ready(plan);
        }
      }
    }
    for (LaneReport& each : reports) {
      sink_(std::move(each));
    }
  }

 private:
  using Commands = std::deque<LaneCommand>;

  /// A command that is being executed. Those above it in the stack were begun while it gave way.
  struct Running {
    std::optional<PlanId> plan;
    std::optional<Attempt> attempt;
    std::uint64_t work = 0;  ///< as that of `LaneExecutor::work_of`
  };

  /// What the thread does next.
  struct Next {
    std::optional<LaneCommand> command;
    std::optional<PlanId> plan;  ///< or this plan goes on
  };

  /// A step of a plan waits for a command of another only where that is not much longer than its own: the running one
  /// gives way, between two tasks, to what has at most this part of its work.
  static constexpr std::uint64_t kShorter = 4;
  static constexpr std::uint64_t kWorkAtOnce = 4U << 20;  ///< of a plan that goes on, as `LaneExecutor::work_of`

  void note_abort(const Abort& abort) {
    const auto [entry, added] = aborted_.try_emplace(abort.plan, abort.tag);
    entry->second = std::max(entry->second, abort.tag);
    follow_top();
  }

  /// Called when the command on top of the stack or its attempt changed.
  void follow_top() {
    const bool aborted = !running_.empty() && running_.back().attempt && is_aborted(*running_.back().attempt);
    cancel_.store(aborted, std::memory_order_relaxed);
  }

  /// Called when the queue or the stack changed.
  void follow_queue() {
    gives_way_ = first_shorter() != commands_.end() || shorter_plan() != ready_.end();
    device_->give_way(gives_way_);
  }

  /// On a thread of a wire: messages came.
  void wake(PlanId plan) {
    {
      const std::lock_guard lock(mutex_);
      note_ready(plan);
      if (!gives_way_ && shorter_plan() != ready_.end()) {
        gives_way_ = true;
        device_->give_way(true);
      }
    }
    wake_.notify_one();
  }

  void note_ready(PlanId plan) {
    if (std::find(ready_.begin(), ready_.end(), plan) == ready_.end()) {
      ready_.push_back(plan);
    }
  }

  /// The first plan that can go on for which the running command gives way: what it does at a time is short.
  [[nodiscard]] std::deque<PlanId>::iterator shorter_plan() {
    return running_.empty() ? ready_.end() : std::find_if(ready_.begin(), ready_.end(), [this](PlanId plan) {
      return !is_running(plan) && kWorkAtOnce <= running_.back().work / kShorter;
    });
  }

  /// Whether a command has to wait until reductions that are under way are done. Those of an aborted attempt do not.
  [[nodiscard]] bool is_parked(const LaneCommand& command) const {
    if (under_way_.empty() || !under_way_.holds_up(command)) {
      return false;
    }
    const std::optional<Attempt> attempt = attempt_of(command);
    return !(attempt && is_aborted(*attempt));
  }

  /// The first command that can be executed now. The commands of a plan stay in order.
  [[nodiscard]] Commands::iterator first_possible() {
    if (under_way_.empty()) {
      return commands_.begin();
    }
    behind_.clear();
    for (auto at = commands_.begin(); at != commands_.end(); ++at) {
      const std::optional<PlanId> plan = plan_of(*at);
      if (plan && std::find(behind_.begin(), behind_.end(), *plan) != behind_.end()) {
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

  [[nodiscard]] bool can_work() { return !ready_.empty() || first_possible() != commands_.end(); }

  /// The running command gives way for none of those before it, or does so already: only this one is looked at, however
  /// many wait.
  void push(LaneCommand command) {
    const std::optional<PlanId> plan = plan_of(command);
    const bool first = plan && waiting_[*plan]++ == 0;
    if (!gives_way_ && first && !running_.empty() && !is_running(*plan) && is_shorter(command) && !is_parked(command)) {
      gives_way_ = true;
      device_->give_way(true);
    }
    commands_.push_back(std::move(command));
  }

  [[nodiscard]] bool is_running(PlanId plan) const {
    return std::any_of(running_.begin(), running_.end(), [plan](const Running& other) { return other.plan == plan; });
  }

  [[nodiscard]] bool is_shorter(const LaneCommand& command) const {
    return std::holds_alternative<Abort>(command) ||
           (attempt_of(command) && work_of(command) <= running_.back().work / kShorter);
  }

  [[nodiscard]] std::uint64_t work_of(const LaneCommand& command) const {
    if (const auto* map = std::get_if<MapBuffer>(&command)) {
      return map->exported ? 0 : map->size_bytes;  // no page of it is touched
    }
    const std::optional<PlanId> plan = plan_of(command);
    const auto found = plan ? work_.find(*plan) : work_.end();
    return found == work_.end() ? 0 : found->second;
  }

  /// The first command for which the running one gives way. The commands of a plan stay in order, and nothing of a plan
  /// that is being executed is begun.
  [[nodiscard]] Commands::iterator first_shorter() {
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
      if (!plan || std::find(behind_.begin(), behind_.end(), *plan) != behind_.end()) {
        continue;
      }
      if (is_shorter(*at) && !is_parked(*at)) {
        return at;
      }
      behind_.push_back(*plan);
    }
    return commands_.end();
  }

  /// Takes a command out of the queue, to be executed.
  LaneCommand begin(Commands::iterator at) {
    LaneCommand command = std::move(*at);
    commands_.erase(at);
    const auto waiting = waiting_.find(plan_of(command).value_or(0));
    if (waiting != waiting_.end() && --waiting->second == 0) {
      waiting_.erase(waiting);
    }
    running_.push_back({plan_of(command), attempt_of(command), work_of(command)});
    follow_top();
    follow_queue();
    return command;
  }

  /// A plan takes its turn.
  PlanId begin(std::deque<PlanId>::iterator at) {
    const PlanId plan = *at;
    ready_.erase(at);
    const std::optional<Tag> tag = under_way_.tag_of(plan);
    const auto attempt = tag ? std::optional(Attempt{plan, *tag}) : std::nullopt;
    running_.push_back({plan, attempt, kWorkAtOnce});
    follow_top();
    follow_queue();
    return plan;
  }

  /// `goes_on`: the plan can, if reductions of it are under way.
  void end(bool goes_on) {
    const std::lock_guard lock(mutex_);
    if (const std::optional<PlanId> plan = running_.back().plan) {
      follow_transfers(*plan);
      if (goes_on && under_way_.tag_of(*plan)) {
        note_ready(*plan);
      }
    }
    running_.pop_back();
    follow_top();
    follow_queue();
  }

  void follow_transfers(PlanId plan) {
    if (const std::optional<Tag> tag = executor_.under_way(plan)) {
      under_way_.note(plan, *tag, executor_.buffers_of(plan));
    } else if (!under_way_.empty()) {
      under_way_.forget(plan);
    }
  }

  /// While the running command gives way: on the lane's thread, no worker is inside a job. It goes on after a few, so
  /// that many short ones do not hold it up for ever.
  void execute_shorter() {
    constexpr int kInARow = 8;
    for (int number = 0; number < kInARow; ++number) {
      Next next;
      {
        const std::lock_guard lock(mutex_);
        if (const auto shorter = first_shorter(); shorter != commands_.end()) {
          next.command = begin(shorter);
        } else if (const auto plan = shorter_plan(); plan != ready_.end()) {
          next.plan = begin(plan);
        } else {
          gives_way_ = false;
          device_->give_way(false);
          return;
        }
      }
      work_on(next);
    }
  }

  /// Moves the commands that the Abort ends to the front, because they take no time any more, and returns the place
  /// behind them: commands of other plans may take seconds, and the sender of the Abort waits. A plan that is yet to be
  /// loaded keeps its order.
  Commands::iterator place_of(const Abort& abort) {
    const auto loads = [&](const LaneCommand& command) {
      const auto* load = std::get_if<LoadPlan>(&command);
      const auto* load_stats = std::get_if<LoadStats>(&command);
      return (load != nullptr && load->plan == abort.plan) || (load_stats != nullptr && load_stats->plan == abort.plan);
    };
    if (std::any_of(commands_.begin(), commands_.end(), loads)) {
      return commands_.end();
    }
    return std::stable_partition(commands_.begin(), commands_.end(), [&](const LaneCommand& command) {
      const auto* earlier = std::get_if<Abort>(&command);
      const std::optional<Attempt> attempt = attempt_of(command);
      return (earlier != nullptr && earlier->plan == abort.plan) ||
             (attempt && attempt->plan == abort.plan && is_aborted(*attempt));
    });
  }

  [[nodiscard]] bool is_aborted(const Attempt& attempt) const {
    const auto found = aborted_.find(attempt.plan);
    return found != aborted_.end() && attempt.tag <= found->second;
  }

  void run() {
    name_this_thread(device_->thread_name());
    while (auto next = wait_for_work()) {
      work_on(*next);
      poll_if_due();
    }
  }

  /// Not while a command gives way: what changes may be what it works on.
  void poll_if_due() {
    const std::optional<TimePoint> due = executor_.next_poll();
    if (due && *due <= std::chrono::steady_clock::now()) {
      poll();
    }
  }

  /// Nothing where the lane ends.
  std::optional<Next> wait_for_work() {
    std::unique_lock lock(mutex_);
    while (!can_work()) {
      if (stop_ && (under_way_.empty() || (gave_up_ && !executor_.next_poll()))) {
        return std::nullopt;
      }
      if (stop_ && !gave_up_) {
        return Next{};  // what is under way ends now
      }
      sleeps_ = true;
      idle_.notify_all();
      wait_for_change(lock);
      sleeps_ = false;
    }
    return take_turn();
  }

  void wait_for_change(std::unique_lock<std::mutex>& lock) {
    const std::optional<TimePoint> due = executor_.next_poll();
    if (!due) {
      wake_.wait(lock);
      return;
    }
    wake_.wait_until(lock, *due);
    lock.unlock();
    poll_if_due();
    lock.lock();
  }

  /// Commands and plans that can go on take turns. There is one.
  Next take_turn() {
    const auto command = first_possible();
    plans_turn_ = !ready_.empty() && (command == commands_.end() || !plans_turn_);
    return plans_turn_ ? Next{std::nullopt, begin(ready_.begin())} : Next{begin(command), std::nullopt};
  }

  void work_on(Next& next) {
    std::optional<LaneReport> report;
    bool goes_on = false;
    if (next.command) {
      gave_up_ = false;  // it may be a reduction
      goes_on = std::holds_alternative<ReduceBucket>(*next.command);
      report = execute(*next.command);
    } else if (next.plan) {
      goes_on = executor_.advance(*next.plan);
    } else {
      give_up_transfers();
    }
    std::vector<LaneReport> reports;
    executor_.take_reports(reports);
    if (next.command || next.plan) {
      end(goes_on);
    }
    for (LaneReport& each : reports) {
      sink_(std::move(each));
    }
    if (report) {
      sink_(std::move(*report));
    }
  }

  void give_up_transfers() {
    executor_.give_up_transfers();
    gave_up_ = true;
    const std::lock_guard lock(mutex_);
    ready_.clear();
    for (const PlanId plan : under_way_.plans()) {
      follow_transfers(plan);
    }
  }

  std::optional<LaneReport> execute(LaneCommand& command) {
    Failed failed = about(command);
    try {
      return std::visit([this](auto& given) { return perform(given); }, command);
    } catch (...) {
      return failure_by_exception(std::move(failed));
    }
  }

  template <typename Command>
  std::optional<LaneReport> perform(Command& command) {
    if constexpr (std::is_same_v<Command, SetWidth>) {
      throw DeviceError("a width change is never queued");
    } else {
      std::optional<LaneReport> report = executor_(command);
      if constexpr (std::is_same_v<Command, UnloadPlan> || std::is_same_v<Command, Abort>) {
        forget_abort_unless_loaded(command.plan);
      }
      if constexpr (std::is_same_v<Command, LoadPlan> || std::is_same_v<Command, LoadStats>) {
        const std::lock_guard lock(mutex_);
        work_[command.plan] = executor_.work_of(command.plan);
      }
      return report;
    }
  }

  void forget_abort_unless_loaded(PlanId plan) {
    if (!executor_.loaded(plan)) {
      const std::lock_guard lock(mutex_);
      aborted_.erase(plan);
      work_.erase(plan);
    }
  }

  LaneSink sink_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable idle_;
  Commands commands_;                      ///< guarded by mutex_, as are all down to `stop_`
  std::map<PlanId, std::size_t> waiting_;  ///< commands of each plan in the queue
  bool gives_way_ = false;                 ///< the running command gives way for one of them
  std::map<PlanId, Tag> aborted_;          ///< the highest aborted attempt of each plan
  std::map<PlanId, std::uint64_t> work_;   ///< of each plan that is loaded
  std::vector<Running> running_;           ///< a stack: the last one has the device
  std::vector<PlanId> behind_;             ///< memory of `first_shorter`
  UnderWay under_way_;                     ///< reductions that are
  std::deque<PlanId> ready_;               ///< those that can go on, each once, in turn
  bool plans_turn_ = false;                ///< a plan went on last, and not a command
  bool sleeps_ = false;                    ///< the thread waits for work
  bool stop_ = false;
  bool gave_up_ = false;             ///< of the lane's thread: it ends, and so does what was under way
  std::atomic<bool> cancel_{false};  ///< the running attempt is aborted; seen by the chunks at once
  std::unique_ptr<LaneDevice> device_;
  LaneExecutor executor_;  ///< of the lane's thread
  std::thread thread_;
};

LaneQueue::LaneQueue(const MakeDevice& make_device, LaneSink sink, MakeWire make_wire, LaneThread thread)
    : thread_(std::make_unique<Thread>(make_device, std::move(sink), std::move(make_wire), thread)) {}

LaneQueue::~LaneQueue() = default;

void LaneQueue::submit(LaneCommand command) { thread_->submit(std::move(command)); }

void LaneQueue::wait_until_idle() { thread_->wait_until_idle(); }

bool LaneQueue::has_work() const { return thread_->has_work(); }

void LaneQueue::work() { thread_->work(); }

bool LaneQueue::has_collectives() const { return thread_->has_collectives(); }

void LaneQueue::poll() { thread_->poll(); }

}  // namespace gradsync::device
