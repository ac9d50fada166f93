#include "device/host_lane.hpp"

#include "device/device_error.hpp"
#include "device/host_executor.hpp"
#include "device/stats_finish.hpp"
#include "device/thread_count.hpp"
#include "device/worker_pool.hpp"

#include <algorithm>
#include <condition_variable>
#include <list>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>

namespace gradsync::device {

namespace {

/// What a command is about, for its Failed report.
Failed about(const LaneCommand& command) {
  Failed failed;
  std::visit(
      [&](const auto& given) {
        if constexpr (requires { given.plan; }) {
          failed.plan = given.plan;
        }
        if constexpr (requires { given.tag; }) {
          failed.tag = given.tag;
        }
        if constexpr (requires { given.buffer; }) {
          failed.buffer = given.buffer;
        }
      },
      command
  );
  return failed;
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
      // Narrow is what the first call of a step makes it: one that takes a moment may soon have the others.
      if (!width->wide && small_.load(std::memory_order_relaxed)) {
        pool_.stir();
      }
      return;
    }
    std::optional<LaneCommand> small;
    {
      const std::lock_guard lock(mutex_);
      if (const auto* abort = std::get_if<Abort>(&command)) {
        note_abort(*abort);
        put(place_of(*abort), std::move(command));
      } else {
        if (const auto* load = std::get_if<LoadPlan>(&command)) {
          make_places(load->layout.buckets.size());
        }
        put(commands_.end(), std::move(command));
      }
      if (executing_) {
        return;  // whoever executes looks for more
      }
      if (commands_.size() == 1 && executor_.is_small(commands_.front())) {
        small = take();
      }
      small_.store(small.has_value(), std::memory_order_relaxed);
    }
    if (small) {
      const Executing executing{*this};
      sink_(execute(*small));
    } else {
      wake_.notify_one();
    }
  }

  [[nodiscard]] int threads() const { return pool_.threads(); }

 private:
  using Commands = std::list<LaneCommand>;

  /// What a submitter executes; afterwards the lane's thread goes on, also where the sink threw.
  struct Executing {
    Queue& queue;

    ~Executing() {
      const std::lock_guard lock(queue.mutex_);
      queue.put_down();
      if (!queue.commands_.empty()) {
        queue.wake_.notify_one();
      }
    }
  };

  /// For the commands of a step of so many buckets, so that none allocates, however many of them wait.
  void make_places(std::size_t buckets) {
    constexpr std::size_t kBesides = 4;  // finish, scale, abort, and the command that brought the plan
    spare_.resize(std::max(spare_.size(), buckets + kBesides));
  }

  void put(Commands::iterator place, LaneCommand command) {
    if (spare_.empty()) {
      commands_.insert(place, std::move(command));
      return;
    }
    spare_.front() = std::move(command);
    commands_.splice(place, spare_, spare_.begin());
  }

  void note_abort(const Abort& abort) {
    const auto [entry, added] = aborted_.try_emplace(abort.plan, abort.tag);
    entry->second = std::max(entry->second, abort.tag);
    cancel_.store(running_ && is_aborted(*running_), std::memory_order_relaxed);
  }

  /// Moves what the Abort ends to the front, for it takes no time any more, and returns the place behind that: other
  /// plans' commands may take seconds, and whoever aborts waits. A plan that is yet to be loaded keeps its order.
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

  std::optional<LaneCommand> next() {
    std::unique_lock lock(mutex_);
    put_down();
    wake_.wait(lock, [this] { return !executing_ && (stop_ || !commands_.empty()); });
    if (commands_.empty()) {
      return std::nullopt;
    }
    return take();
  }

  /// The first command, for the caller to execute.
  LaneCommand take() {
    LaneCommand command = std::move(commands_.front());
    spare_.splice(spare_.begin(), commands_, commands_.begin());
    executing_ = true;
    running_ = attempt_of(command);
    cancel_.store(running_ && is_aborted(*running_), std::memory_order_relaxed);
    return command;
  }

  void put_down() {
    executing_ = false;
    running_.reset();
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
  Commands commands_;              ///< guarded by mutex_, as are the next five
  Commands spare_;                 ///< places of commands that were executed, for those to come
  std::map<PlanId, Tag> aborted_;  ///< the highest aborted attempt of each plan
  std::optional<Attempt> running_;
  bool executing_ = false;  ///< some thread uses the executor and the pool
  bool stop_ = false;
  std::atomic<bool> small_{false};   ///< the last command was executed where it was submitted
  std::atomic<bool> cancel_{false};  ///< the running attempt is aborted; seen by the chunks at once
  WorkerPool pool_;
  HostExecutor executor_;  ///< of whoever executes
  std::thread thread_;
};

HostLane::HostLane(HostLaneOptions options, LaneSink sink)
    : queue_(std::make_unique<Queue>(options.threads > 0 ? options.threads : available_threads(), std::move(sink))) {}

HostLane::~HostLane() = default;

void HostLane::submit(LaneCommand command) { queue_->submit(std::move(command)); }

int HostLane::threads() const { return queue_->threads(); }

}  // namespace gradsync::device
