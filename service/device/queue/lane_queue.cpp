#include "device/queue/lane_queue.hpp"

#include "base/older_runtime.hpp"
#include "base/thread_name.hpp"
#include "device/about.hpp"
#include "device/device_error.hpp"
#include "device/queue/lane_executor.hpp"
#include "device/step/stats_finish.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace gradsync::device {

namespace {

/// The plan that a command is about.
std::optional<PlanId> plan_of(const LaneCommand& command) {
  return std::visit(
      [](const auto& given) -> std::optional<PlanId> {
        if constexpr (requires { given.plan; }) {
          return given.plan;
        } else {
          return std::nullopt;
        }
      },
      command
  );
}

/// The attempt a command works on, if an Abort can stop it.
struct Attempt {
  PlanId plan = 0;
  Tag tag = 0;
};

std::optional<Attempt> attempt_of(const LaneCommand& command) {
  return std::visit(
      [](const auto& given) -> std::optional<Attempt> {
        using Command = std::remove_cvref_t<decltype(given)>;
        if constexpr (std::is_same_v<Command, ReduceBucket> || std::is_same_v<Command, FinishStep> || std::is_same_v<Command, MeasureBuckets> || std::is_same_v<Command, ScaleGradients> || std::is_same_v<Command, ReadRows>) {
          return Attempt{given.plan, given.tag};
        } else {
          return std::nullopt;
        }
      },
      command
  );
}

}  // namespace

class LaneQueue::Thread {
 public:
  Thread(const MakeDevice& make_device, LaneSink sink)
      : sink_(std::move(sink)), device_(make_device(cancel_)), executor_(*device_, cancel_) {
    device_->set_between([this] { execute_shorter(); });
    thread_ = std::thread([this] { run(); });
  }

  ~Thread() {
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

 private:
  using Commands = std::deque<LaneCommand>;

  /// A command that is being executed. Those above it in the stack were begun while it gave way.
  struct Running {
    std::optional<PlanId> plan;
    std::optional<Attempt> attempt;
    std::uint64_t work = 0;  ///< as that of `LaneExecutor::work_of`
  };

  /// A step of a plan waits for a command of another only where that is not much longer than its own: the running one
  /// gives way, between two tasks, to what has at most this part of its work.
  static constexpr std::uint64_t kShorter = 4;

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
    gives_way_ = first_shorter() != commands_.end();
    device_->give_way(gives_way_);
  }

  /// The running command gives way for none of those before it, or does so already: only this one is looked at, however
  /// many wait.
  void push(LaneCommand command) {
    const std::optional<PlanId> plan = plan_of(command);
    const bool first = plan && waiting_[*plan]++ == 0;
    if (!gives_way_ && first && !running_.empty() && !is_running(*plan) && is_shorter(command)) {
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
      if (is_shorter(*at)) {
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

  void end() {
    const std::lock_guard lock(mutex_);
    running_.pop_back();
    follow_top();
    follow_queue();
  }

  /// While the running command gives way: on the lane's thread, no worker is inside a job. It goes on after a few, so
  /// that many short ones do not hold it up for ever.
  void execute_shorter() {
    constexpr int kInARow = 8;
    for (int number = 0; number < kInARow; ++number) {
      std::optional<LaneCommand> command;
      {
        const std::lock_guard lock(mutex_);
        const auto shorter = first_shorter();
        if (shorter == commands_.end()) {
          gives_way_ = false;
          device_->give_way(false);
          return;
        }
        command = begin(shorter);
      }
      LaneReport report = execute(*command);
      end();
      sink_(std::move(report));
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
    while (auto command = next()) {
      LaneReport report = execute(*command);
      end();
      sink_(std::move(report));
    }
  }

  /// The first command; nothing where the lane ends.
  std::optional<LaneCommand> next() {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return stop_ || !commands_.empty(); });
    if (commands_.empty()) {
      return std::nullopt;
    }
    return begin(commands_.begin());
  }

  LaneReport execute(LaneCommand& command) {
    Failed failed = about(command);
    try {
      return std::visit([this](auto& given) { return perform(given); }, command);
    } catch (const RowError& error) {
      failed.message = error.what();
      failed.row = FailedRow{error.tensor(), error.rank(), error.field()};
    } catch (const DeviceError& error) {
      failed.message = error.what();
      failed.aborted = error.kind() == DeviceError::Kind::Aborted;
      failed.out_of_memory = error.kind() == DeviceError::Kind::OutOfMemory;
      failed.lane_lost = error.kind() == DeviceError::Kind::DeviceLost;
      failed.hint = error.hint();
    } catch (const std::bad_alloc&) {
      failed.message = "out of memory";
      failed.out_of_memory = true;
    } catch (const std::exception& error) {
      failed.message = error.what();
    }
    return failed;
  }

  template <typename Command>
  LaneReport perform(Command& command) {
    if constexpr (std::is_same_v<Command, Abort>) {
      forget_abort_unless_loaded(command.plan);
      return Aborted{command.plan, command.tag};
    } else if constexpr (std::is_same_v<Command, SetWidth>) {
      throw DeviceError("a width change is never queued");
    } else {
      LaneReport report = executor_(command);
      if constexpr (std::is_same_v<Command, UnloadPlan>) {
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
  Commands commands_;                      ///< guarded by mutex_, as are the next six
  std::map<PlanId, std::size_t> waiting_;  ///< commands of each plan in the queue
  bool gives_way_ = false;                 ///< the running command gives way for one of them
  std::map<PlanId, Tag> aborted_;          ///< the highest aborted attempt of each plan
  std::map<PlanId, std::uint64_t> work_;   ///< of each plan that is loaded
  std::vector<Running> running_;           ///< a stack: the last one has the device
  std::vector<PlanId> behind_;             ///< memory of `first_shorter`
  bool stop_ = false;
  std::atomic<bool> cancel_{false};  ///< the running attempt is aborted; seen by the chunks at once
  std::unique_ptr<LaneDevice> device_;
  LaneExecutor executor_;  ///< of the lane's thread
  std::thread thread_;
};

LaneQueue::LaneQueue(const MakeDevice& make_device, LaneSink sink)
    : thread_(std::make_unique<Thread>(make_device, std::move(sink))) {}

LaneQueue::~LaneQueue() = default;

void LaneQueue::submit(LaneCommand command) { thread_->submit(std::move(command)); }

}  // namespace gradsync::device
