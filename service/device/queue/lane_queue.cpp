#include "device/queue/lane_queue.hpp"

#include "base/older_runtime.hpp"
#include "base/thread_name.hpp"
#include "device/about.hpp"
#include "device/device_error.hpp"
#include "device/failure.hpp"
#include "device/queue/lane_executor.hpp"
#include "device/queue/lane_order.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
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
      order_.add(std::move(command));
      follow_order();
    }
    wake_.notify_one();
  }

  void wait_until_idle() {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [this] { return sleeps_ && !order_.can_work(); });
  }

  [[nodiscard]] bool has_work() {
    const std::lock_guard lock(mutex_);
    return order_.can_work();
  }

  void work() {
    LaneOrder::Next next;
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
        order_.go_on_if_under_way(plan);
      }
    }
    for (LaneReport& each : reports) {
      sink_(std::move(each));
    }
  }

 private:
  /// Behind every change of the order.
  void follow_order() {
    cancel_.store(order_.cancels(), std::memory_order_relaxed);
    device_->give_way(order_.gives_way());
  }

  /// On a thread of a wire: messages came.
  void wake(PlanId plan) {
    {
      const std::lock_guard lock(mutex_);
      order_.go_on(plan);
      follow_order();
    }
    wake_.notify_one();
  }

  /// There is one.
  LaneOrder::Next take_turn() {
    LaneOrder::Next next = order_.take_turn();
    follow_order();
    return next;
  }

  /// `goes_on`: the plan can, if reductions of it are under way.
  void end(bool goes_on) {
    const std::lock_guard lock(mutex_);
    if (const std::optional<PlanId> plan = order_.running_plan()) {
      follow_transfers(*plan);
      if (goes_on) {
        order_.go_on_if_under_way(*plan);
      }
    }
    order_.end();
    follow_order();
  }

  void follow_transfers(PlanId plan) {
    if (const std::optional<Tag> tag = executor_.under_way(plan)) {
      order_.note_under_way(plan, *tag, executor_.buffers_of(plan));
    } else {
      order_.note_not_under_way(plan);
    }
  }

  /// While the running command gives way: on the lane's thread, no worker is inside a job. It goes on after a few, so
  /// that many short ones do not hold it up for ever.
  void execute_shorter() {
    constexpr int kInARow = 8;
    for (int number = 0; number < kInARow; ++number) {
      std::optional<LaneOrder::Next> next;
      {
        const std::lock_guard lock(mutex_);
        next = order_.take_shorter();
        follow_order();
      }
      if (!next) {
        return;
      }
      work_on(*next);
    }
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
  std::optional<LaneOrder::Next> wait_for_work() {
    std::unique_lock lock(mutex_);
    while (!order_.can_work()) {
      if (stop_ && (!order_.anything_under_way() || (gave_up_ && !executor_.next_poll()))) {
        return std::nullopt;
      }
      if (stop_ && !gave_up_) {
        return LaneOrder::Next{};  // what is under way ends now
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

  void work_on(LaneOrder::Next& next) {
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
    for (const PlanId plan : order_.give_up()) {
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
        forget_unless_loaded(command.plan);
      }
      if constexpr (std::is_same_v<Command, LoadPlan> || std::is_same_v<Command, LoadStats>) {
        const std::lock_guard lock(mutex_);
        order_.note_work(command.plan, executor_.work_of(command.plan));
      }
      return report;
    }
  }

  void forget_unless_loaded(PlanId plan) {
    if (!executor_.loaded(plan)) {
      const std::lock_guard lock(mutex_);
      order_.forget(plan);
    }
  }

  LaneSink sink_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable idle_;
  LaneOrder order_;      ///< guarded by mutex_, as are all down to `stop_`
  bool sleeps_ = false;  ///< the thread waits for work
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
