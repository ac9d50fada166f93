#include "device/host/host_lane.hpp"

#include "base/older_runtime.hpp"
#include "device/about.hpp"
#include "device/device_error.hpp"
#include "device/host/host_executor.hpp"
#include "device/host/stats_finish.hpp"
#include "device/host/thread_count.hpp"
#include "device/host/worker_pool.hpp"

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

namespace gradsync::device {

namespace {

/// The attempt a command works on, if an Abort can stop it.
struct Attempt {
  PlanId plan = 0;
  Tag tag = 0;
};

std::optional<Attempt> attempt_of(const LaneCommand& command) {
  return std::visit(
      [](const auto& given) -> std::optional<Attempt> {
        using Command = std::remove_cvref_t<decltype(given)>;
        if constexpr (std::is_same_v<Command, ReduceBucket> || std::is_same_v<Command, FinishStep> || std::is_same_v<Command, ScaleGradients>) {
          return Attempt{given.plan, given.tag};
        } else {
          return std::nullopt;
        }
      },
      command
  );
}

}  // namespace

class HostLane::Queue {
 public:
  Queue(int threads, LaneSink sink)
      : sink_(std::move(sink)), pool_(threads, "lane:host"), executor_(pool_, cancel_), thread_([this] { run(); }) {}

  ~Queue() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

  void submit(LaneCommand command) {
    if (const auto* width = std::get_if<SetWidth>(&command)) {
      pool_.set_width(width->wide ? pool_.threads() : std::max(1, pool_.threads() / 2));
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      if (const auto* abort = std::get_if<Abort>(&command)) {
        note_abort(*abort);
        const auto place = place_of(*abort);
        commands_.insert(place, std::move(command));
      } else {
        commands_.push_back(std::move(command));
      }
    }
    wake_.notify_one();
  }

  [[nodiscard]] int threads() const { return pool_.threads(); }

 private:
  using Commands = std::deque<LaneCommand>;

  void note_abort(const Abort& abort) {
    const auto [entry, added] = aborted_.try_emplace(abort.plan, abort.tag);
    entry->second = std::max(entry->second, abort.tag);
    cancel_.store(running_ && is_aborted(*running_), std::memory_order_relaxed);
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
    name_this_thread("lane:host");
    while (auto command = next()) {
      sink_(execute(*command));
    }
  }

  /// The first command; nothing where the lane ends.
  std::optional<LaneCommand> next() {
    std::unique_lock lock(mutex_);
    running_.reset();
    wake_.wait(lock, [this] { return stop_ || !commands_.empty(); });
    if (commands_.empty()) {
      return std::nullopt;
    }
    LaneCommand command = std::move(commands_.front());
    commands_.pop_front();
    running_ = attempt_of(command);
    cancel_.store(running_ && is_aborted(*running_), std::memory_order_relaxed);
    return command;
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
      return report;
    }
  }

  void forget_abort_unless_loaded(PlanId plan) {
    if (!executor_.loaded(plan)) {
      const std::lock_guard lock(mutex_);
      aborted_.erase(plan);
    }
  }

  LaneSink sink_;
  std::mutex mutex_;
  std::condition_variable wake_;
  Commands commands_;              ///< guarded by mutex_, as are the next three
  std::map<PlanId, Tag> aborted_;  ///< the highest aborted attempt of each plan
  std::optional<Attempt> running_;
  bool stop_ = false;
  std::atomic<bool> cancel_{false};  ///< the running attempt is aborted; seen by the chunks at once
  WorkerPool pool_;
  HostExecutor executor_;  ///< of the lane's thread
  std::thread thread_;
};

HostLane::HostLane(HostLaneOptions options, LaneSink sink)
    : queue_(std::make_unique<Queue>(options.threads > 0 ? options.threads : available_threads(), std::move(sink))) {}

HostLane::~HostLane() = default;

void HostLane::submit(LaneCommand command) { queue_->submit(std::move(command)); }

int HostLane::threads() const { return queue_->threads(); }

}  // namespace gradsync::device
