#include "net/socket/closer.hpp"

#include <spdlog/spdlog.h>

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <ctime>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid  // glibc 2.36 does not name it
#endif

namespace gradsync::net {

namespace {

using Clock = std::chrono::steady_clock;

int interrupting_signal() { return SIGRTMIN + 2; }

/// Interrupts the thread that made it, while it is armed.
class Interrupter {
 public:
  Interrupter() {
    struct sigaction action {};

    action.sa_handler = [](int) {};
    sigevent event{};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = interrupting_signal();
    event.sigev_notify_thread_id = static_cast<pid_t>(::syscall(SYS_gettid));
    armable_ =
        ::sigaction(event.sigev_signo, &action, nullptr) == 0 && ::timer_create(CLOCK_MONOTONIC, &event, &timer_) == 0;
    if (!armable_) {
      spdlog::warn("closing a descriptor cannot be interrupted: there is no timer");
    }
  }

  Interrupter(const Interrupter&) = delete;
  Interrupter& operator=(const Interrupter&) = delete;

  ~Interrupter() {
    if (armable_) {
      ::timer_delete(timer_);
    }
  }

  void arm(Milliseconds every) {
    const timespec interval{0, static_cast<long>(std::chrono::nanoseconds(every).count())};
    const itimerspec setting{interval, interval};
    if (armable_) {
      ::timer_settime(timer_, 0, &setting, nullptr);
    }
  }

 private:
  timer_t timer_{};
  bool armable_ = false;
};

/// A socket is read empty first, because a close with unread bytes resets the connection. Other descriptors refuse it.
void close_now(UniqueFd fd) {
  constexpr int kReads = 256;
  std::array<char, 4096> sink;
  for (int i = 0; i<kReads&& ::recv(fd.get(), sink.data(), sink.size(), MSG_DONTWAIT)> 0; ++i) {
  }
  fd.reset();
}

}  // namespace

struct Closer::State : std::enable_shared_from_this<State> {
  struct Entry {
    UniqueFd fd;
    std::uint32_t uid = 0;
    Clock::time_point due;
  };

  void push(std::deque<Entry>& queue, Entry entry) {
    const std::scoped_lock lock{mutex};
    std::size_t& of_uid = pending[entry.uid];
    queue.push_back(std::move(entry));
    ++of_uid;
    changed.notify_one();
  }

  /// With the lock.
  void start_thread() {
    threads.emplace_back([self = shared_from_this()] { self->run(); });
    ++running;
  }

  /// With the lock: one thread more than hang is there to take over, also where nothing more is closed after them.
  void keep_one_spare() {
    if (begun.size() >= running && running < kMostThreads && !stopping) {
      start_spare();
    }
  }

  /// With the lock.
  void start_spare() {
    try {
      start_thread();
    } catch (const std::exception& problem) {
      spdlog::warn("no thread more to close descriptors: {}", problem.what());
    }
  }

  /// With the lock: another thread closes something, and does not hang.
  [[nodiscard]] bool others_go_on() const {
    const Clock::time_point hangs = Clock::now() - kHangs;
    return !stopping && std::any_of(begun.begin(), begun.end(), [hangs](auto at) { return at >= hangs; });
  }

  /// With the lock.
  std::optional<Entry> next() {
    if (others_go_on()) {
      return std::nullopt;
    }
    for (std::deque<Entry>* queue : {&at_once, &goodbyes}) {
      if (!queue->empty() && (stopping || queue->front().due <= Clock::now())) {
        Entry entry = std::move(queue->front());
        queue->pop_front();
        return entry;
      }
    }
    return std::nullopt;
  }

  /// With the lock: when there may be something to do for a thread that has nothing to do.
  [[nodiscard]] Clock::time_point look_again_at() const {
    if (others_go_on() && !(at_once.empty() && goodbyes.empty())) {
      return *std::max_element(begun.begin(), begun.end()) + kHangs + Milliseconds{1};
    }
    return goodbyes.empty() ? Clock::now() + std::chrono::hours(1) : goodbyes.front().due;
  }

  void run() {
    Interrupter interrupter;
    std::unique_lock lock{mutex};
    while (!abandoned) {
      std::optional<Entry> entry = next();
      if (!entry) {
        if (stopping) {
          break;
        }
        changed.wait_until(lock, look_again_at());
        continue;
      }
      const Clock::time_point now = Clock::now();
      begun.push_back(now);
      keep_one_spare();
      lock.unlock();
      interrupter.arm(kPatience);
      close_now(std::move(entry->fd));
      interrupter.arm(Milliseconds{0});
      lock.lock();
      begun.erase(std::find(begun.begin(), begun.end(), now));
      if (--pending[entry->uid] == 0) {
        pending.erase(entry->uid);
      }
    }
    --running;
    changed.notify_all();
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Entry> at_once;
  std::deque<Entry> goodbyes;
  std::map<std::uint32_t, std::size_t> pending;
  std::vector<std::thread> threads;
  std::size_t running = 0;
  std::vector<Clock::time_point> begun;  ///< of each close that goes on
  bool stopping = false;
  bool abandoned = false;
};

Closer::Closer() : state_(std::make_shared<State>()) {
  const std::scoped_lock lock{state_->mutex};
  state_->start_thread();
  state_->start_spare();
}

Closer::~Closer() {
  std::unique_lock lock{state_->mutex};
  state_->stopping = true;
  state_->changed.notify_all();
  const bool ended = state_->changed.wait_for(lock, kGoodbye, [this] { return state_->running == 0; });
  state_->abandoned = true;
  for (std::deque<State::Entry>* queue : {&state_->at_once, &state_->goodbyes}) {
    for (State::Entry& entry : *queue) {
      static_cast<void>(entry.fd.release());  // a process that ends does not wait for its connections
    }
  }
  lock.unlock();
  for (std::thread& thread : state_->threads) {
    if (ended) {
      thread.join();
    } else {
      thread.detach();  // it hangs in a system call, and touches nothing but this state
    }
  }
}

void Closer::close(UniqueFd fd, std::uint32_t uid) {
  if (fd.valid()) {
    ::shutdown(fd.get(), SHUT_RDWR);  // no socket: nothing happens
    state_->push(state_->at_once, {std::move(fd), uid, Clock::now()});
  }
}

void Closer::close_after_goodbye(UniqueFd fd, std::uint32_t uid) {
  bool room = false;
  {
    const std::scoped_lock lock{state_->mutex};
    room = state_->goodbyes.size() < kMostGoodbyes;
  }
  if (room) {
    ::shutdown(fd.get(), SHUT_WR);
    state_->push(state_->goodbyes, {std::move(fd), uid, Clock::now() + kGoodbye});
  } else {
    close(std::move(fd), uid);
  }
}

std::size_t Closer::pending(std::uint32_t uid) const {
  const std::scoped_lock lock{state_->mutex};
  const auto found = state_->pending.find(uid);
  return found == state_->pending.end() ? 0 : found->second;
}

}  // namespace gradsync::net
