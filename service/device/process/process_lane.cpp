#include "device/process/process_lane.hpp"

#include "base/thread_name.hpp"
#include "device/device_error.hpp"
#include "device/lane_codec.hpp"
#include "device/process/outstanding_commands.hpp"
#include "device/process/packet_socket.hpp"
#include "device/process/worker_process.hpp"

#include <fmt/format.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

namespace gradsync::device {

namespace {

using Clock = std::chrono::steady_clock;

/// From the end of the socket to the end of the process that held it.
constexpr Milliseconds kEndOfProcess{1000};

struct SocketPair {
  UniqueFd ours;  ///< does not block
  UniqueFd theirs;
};

SocketPair make_sockets() {
  std::array<int, 2> fds{-1, -1};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds.data()) != 0) {
    throw DeviceError("no socket can be had for a worker");
  }
  SocketPair pair{UniqueFd(fds[0]), UniqueFd(fds[1])};
  ::fcntl(pair.ours.get(), F_SETFL, O_NONBLOCK);
  return pair;
}

UniqueFd make_wake() {
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) {
    throw DeviceError("no eventfd can be had for a lane");
  }
  return wake;
}

/// For `poll`, rounded up, so that a deadline has passed when it returns.
int milliseconds_until(std::optional<TimePoint> deadline) {
  if (!deadline) {
    return -1;
  }
  const auto left = std::chrono::ceil<Milliseconds>(*deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<Milliseconds::rep>(left, 0, 3'600'000));
}

}  // namespace

/// The mutex guards what other threads touch: the queue, the order to stop, and why the lane is lost.
class ProcessLane::Loop {
 public:
  Loop(ProcessLaneOptions options, LaneSink sink)
      : options_(std::move(options)), sink_(std::move(sink)), wake_(make_wake()), thread_([this] { run(); }) {}

  ~Loop() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake();
    thread_.join();
  }

  void submit(LaneCommand command) {
    {
      const std::lock_guard lock(mutex_);
      submitted_.push_back(std::move(command));
    }
    wake();
  }

  [[nodiscard]] std::optional<std::string> lost() const {
    const std::lock_guard lock(mutex_);
    return lost_;
  }

  [[nodiscard]] pid_t worker_pid() const { return pid_; }

 private:
  void wake() const {
    const std::uint64_t one = 1;
    (void)!::write(wake_.get(), &one, sizeof(one));  // full: the thread is awake
  }

  void run() {
    name_this_thread("lane:process");
    try {
      serve();
    } catch (const DeviceError& error) {
      lose(error.what(), error.hint());
      refuse_until_stopped();
    } catch (const std::exception& error) {
      lose(error.what(), "");
      refuse_until_stopped();
    }
  }

  /// Until the lane is destroyed and everything is answered. Throws where the worker cannot go on.
  void serve() {
    SocketPair sockets = make_sockets();
    PacketSocket socket(std::move(sockets.ours));
    worker_.emplace(options_.command, options_.environment, sockets.theirs);
    pid_ = worker_->pid();
    sockets.theirs.reset();
    while (!socket.ended()) {
      take_submitted();
      send_what_fits(socket);
      wait(socket);
      take_reports(socket);
      check_deadlines();
    }
    if (!stop_deadline_ || !outstanding_.empty() || !unsent_.empty()) {
      const std::optional<std::string> end = worker_->wait_end(kEndOfProcess);
      throw DeviceError(end ? *end : "closed its socket");
    }
    if (!worker_->wait_end(options_.stop_deadline)) {
      worker_->kill();
    }
  }

  /// Counts what was submitted as outstanding, and learns of the order to stop.
  void take_submitted() {
    const std::lock_guard lock(mutex_);
    const TimePoint now = Clock::now();
    for (LaneCommand& command : submitted_) {
      outstanding_.add(
          command,
          now,
          {options_.abort_deadline,
           options_.import_deadline,
           options_.other_deadline,
           options_.connect_deadline,
           std::max(options_.abort_deadline, options_.nccl_abort_deadline)}
      );
      unsent_.push_back(std::move(command));
    }
    submitted_.clear();
    if (stop_ && !stop_deadline_) {
      stop_deadline_ = now + options_.stop_deadline;
    }
  }

  void send_what_fits(PacketSocket& socket) {
    while (!packet_full_) {
      if (!packet_ && !unsent_.empty()) {
        packet_ = pack(encode(std::move(unsent_.front())));
        unsent_.pop_front();
      }
      if (!packet_) {
        break;
      }
      packet_full_ = socket.send(*packet_) != PacketSocket::Sent::Done;  // of a broken one the end is read next
      if (!packet_full_) {
        packet_.reset();
      }
    }
    if (stop_deadline_ && !packet_ && unsent_.empty()) {
      socket.end_sending();  // the worker finishes what it has, and ends
    }
  }

  void wait(const PacketSocket& socket) {
    const auto of_command = outstanding_.next_deadline();
    std::optional<TimePoint> deadline = of_command ? std::optional(of_command->when) : std::nullopt;
    if (stop_deadline_ && (!deadline || *stop_deadline_ < *deadline)) {
      deadline = stop_deadline_;
    }
    const auto events = static_cast<short>(packet_full_ ? POLLIN | POLLOUT : POLLIN);
    std::array<pollfd, 2> watched{pollfd{socket.fd(), events, 0}, pollfd{wake_.get(), POLLIN, 0}};
    ::poll(watched.data(), watched.size(), milliseconds_until(deadline));
    packet_full_ = packet_full_ && (watched[0].revents & (POLLOUT | POLLHUP | POLLERR)) == 0;
    std::uint64_t ignored = 0;
    (void)!::read(wake_.get(), &ignored, sizeof(ignored));
  }

  void take_reports(PacketSocket& socket) {
    while (std::optional<Packet> packet = socket.receive()) {
      LaneMessage message = unpack(std::move(*packet));
      Result<LaneReport> report = decode_report(message.bytes, std::move(message.fds));
      if (report.has_error()) {
        throw DeviceError("sent garbage: " + report.error().message);
      }
      // Its command is still outstanding, so this answers it as well. Before that the worker ends: only then are the
      // mappings of a GPU that answers nothing more gone.
      if (const auto* failed = std::get_if<Failed>(&*report); failed != nullptr && failed->lane_lost) {
        throw DeviceError("lost its device: " + failed->message, failed->hint);
      }
      if (!outstanding_.answered_by(*report)) {
        throw DeviceError(fmt::format("sent garbage: a report of kind {} that answers no command", report->index()));
      }
      sink_(std::move(*report));
    }
  }

  void check_deadlines() const {
    const TimePoint now = Clock::now();
    if (const auto deadline = outstanding_.next_deadline(); deadline && deadline->when <= now) {
      throw DeviceError(fmt::format("did not answer {} within {} ms", deadline->what, deadline->patience.count()));
    }
    if (stop_deadline_ && *stop_deadline_ <= now) {
      throw DeviceError(fmt::format("did not finish within {} ms", options_.stop_deadline.count()));
    }
  }

  /// Ends the worker, and only then says so of all that is outstanding.
  void lose(const std::string& why, const std::string& hint) {
    std::string message = why;
    if (worker_) {
      message = fmt::format("the worker of the lane (pid {}) {}", worker_->pid(), why);
      worker_->kill();
      if (!worker_->wait_end(options_.kill_deadline)) {
        message += "; it was killed and does not end: do not reuse the buffers";
      }
    }
    {
      const std::lock_guard lock(mutex_);
      lost_ = message;
    }
    packet_.reset();
    unsent_.clear();
    hint_ = hint;
    fail_outstanding(message);
  }

  void fail_outstanding(const std::string& message) {
    while (!outstanding_.empty()) {
      Failed failed = outstanding_.take_oldest();
      failed.message = message;
      failed.hint = hint_;
      failed.lane_lost = true;
      sink_(std::move(failed));
    }
  }

  void refuse_until_stopped() {
    while (true) {
      take_submitted();
      unsent_.clear();
      fail_outstanding(*lost());
      if (stop_deadline_) {
        return;
      }
      pollfd watched{wake_.get(), POLLIN, 0};
      ::poll(&watched, 1, -1);
      std::uint64_t ignored = 0;
      (void)!::read(wake_.get(), &ignored, sizeof(ignored));
    }
  }

  ProcessLaneOptions options_;
  LaneSink sink_;
  mutable std::mutex mutex_;
  std::deque<LaneCommand> submitted_;  ///< guarded by mutex_, as are the next two
  std::optional<std::string> lost_;
  bool stop_ = false;
  std::atomic<pid_t> pid_{0};
  UniqueFd wake_;

  // These belong to the lane's thread.
  std::optional<WorkerProcess> worker_;
  std::deque<LaneCommand> unsent_;
  std::optional<Packet> packet_;  ///< the next to be sent
  bool packet_full_ = false;      ///< the socket had no room for it
  OutstandingCommands outstanding_;
  std::string hint_;                        ///< what to do about the loss of the lane
  std::optional<TimePoint> stop_deadline_;  ///< the lane is being destroyed
  std::thread thread_;
};

ProcessLane::ProcessLane(ProcessLaneOptions options, LaneSink sink)
    : loop_(std::make_unique<Loop>(std::move(options), std::move(sink))) {}

ProcessLane::~ProcessLane() = default;

void ProcessLane::submit(LaneCommand command) { loop_->submit(std::move(command)); }

std::optional<std::string> ProcessLane::lost() const { return loop_->lost(); }

pid_t ProcessLane::worker_pid() const { return loop_->worker_pid(); }

}  // namespace gradsync::device
